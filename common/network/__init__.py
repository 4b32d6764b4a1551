"""Network: addresses, certificates, and renewed TLS files."""
