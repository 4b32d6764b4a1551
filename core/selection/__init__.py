"""Selection: a strategy, signals and a budget become a subset.

Imports go one way: registry and select, strategies, solvers, pairs and vectors, signals.
"""
