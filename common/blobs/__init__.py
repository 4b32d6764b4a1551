"""Blobs: contents named by their digest, kept durably on disk and moved between processes.

Owns the store's directory layout, the way of a blob over the wire on the client's side, and what
makes any file durable. For all three processes: the coordinator serves its store and keeps its
state with `durable`, workers and trainers transfer.
"""
