"""Certificates: an authority of one's own, for who has none, made by `lipt certs`.

Imported by that command alone. What a certificate says, where files lie and what is told about them
are kept apart: only `folder` writes.
"""
