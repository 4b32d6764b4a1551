"""Inputs: images and named tensors, from stored examples to a model's arguments."""
