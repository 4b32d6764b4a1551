"""Solvers: greedy maximization, matching pursuit, neighbours and clustering for strategies."""
