"""Servicers of the contract `lipt.v1`: read the request, delegate, answer.

No decision lives here: the folders below decide, `messages` turns their records into the wire's
messages, and the server's interceptor turns errors into statuses. Only `lipt.coordinator.server`
imports this package.
"""
