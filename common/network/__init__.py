"""Network: addresses, certificates, and TLS files that are renewed."""
