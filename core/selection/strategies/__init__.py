"""Strategies: one selection algorithm a file, beside the few helpers that belong to one family.

A strategy sees signals and a budget, never the service: balance, quotas, seeds and checks are
decided in `selection`. The registry alone imports this folder; it imports solvers, gradients
and signals.
"""
