"""Weights as files: safetensors, dense or sparse, checked before they are believed.

Owns the formats to the byte, and the only reader of safetensors files. For all three processes.
"""
