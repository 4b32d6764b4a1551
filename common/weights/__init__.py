"""Weights as bytes: safetensors files, dense or sparse, checked before they are believed."""
