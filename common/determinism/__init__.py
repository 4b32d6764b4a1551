"""Determinism: what makes one seed give one result.

Owns the derivation of seeds, and the pinning of threads, kernels and global generators. For
whoever draws or computes; nothing else may touch torch's global settings.
"""
