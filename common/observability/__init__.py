"""Observability: logs, events, metrics and traces."""
