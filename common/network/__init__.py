"""Network: addresses, who can reach them, and certificates.

Owns the meaning of `--listen`, `--insecure` and `--tls-*`, and follows files that change. For
`rpc`, the metrics endpoint, and the command lines.
"""
