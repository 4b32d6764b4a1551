"""Inputs: what an example is to a model, whatever kind of data it comes from.

Owns the two kinds there are, images and tensors by name, how each is made from what is stored of
it, and how a model is called with it. For all three processes.
"""
