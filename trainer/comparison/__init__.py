"""Comparison: whether a strategy's subsets beat random ones, and at what total cost.

Imported by `lipt compare`, the demo and the report. Trials are measured by main training;
tables and the verdict are pure functions of them.
"""
