"""Observability: the events of a process, logged and counted, and its metrics over HTTP.

Owns the names that operators see. For both services and for what they call.
"""
