"""Subsets: how large one is, the digest that names it, and the difference between two.

Owns the rules that the coordinator and the trainer must agree on to the byte; for those two.
"""
