"""Algorithms that several strategies share: greedy maximization and matching pursuit.

They see similarities, levels and gains, never signals' meaning: what is maximized is
decided by the strategy.
"""
