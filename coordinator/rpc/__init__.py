"""Servicers of the contract `lipt.v1`: read the request, delegate, answer."""
