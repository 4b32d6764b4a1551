"""Tracking: a run and its subsets in an experiment tracker, so that one is found from the other.

Owns what is told of them, under which names, and how MLflow and Weights & Biases take it. For
`lipt track`, and for whoever logs by themselves: `Subset.tags`.
"""
