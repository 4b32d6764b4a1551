"""Stages: what is computed of all examples, once, and kept by the workspace."""
