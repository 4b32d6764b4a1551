"""Comparison: whether a strategy's subsets beat what people would do instead, and at what cost."""
