"""Comparison of strategies' subsets with random subsets and all of the data."""
