"""The verdict: whether a strategy's subsets beat random ones, and at what total cost."""
