"""Blobs: content named by its digest, stored durably and transferred."""
