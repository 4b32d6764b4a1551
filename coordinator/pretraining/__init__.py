"""Distributed pre-training, the coordinator's half: theta*, the shards, the greedy soup.

Owns the paper's sections 3.1 to 3.3 as plain functions of tensors: no files, no event loop.
Imported by `compute`, `signals` and, for what a run may ask for, `runs`.
"""
