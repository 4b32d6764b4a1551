"""Weights as files: safetensors, dense or sparse, checked before use."""
