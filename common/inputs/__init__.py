"""Inputs: images and tensors by name, from stored examples to a model's arguments."""
