"""Blobs: contents named by their digest, stored durably and moved between processes."""
