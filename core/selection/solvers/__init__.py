"""Solvers: greedy maximization, matching pursuit and clustering that several strategies share.

They see similarities, levels and gains, never signals' meaning: what is maximized is decided
by the strategy. Strategies import this folder; it imports gradients.
"""
