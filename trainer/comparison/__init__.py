"""Comparison: whether a strategy's subsets beat what people would do instead, and at what cost.

Imported by `lipt compare`, the demo and the report. Trials are measured by main training;
tables and the verdict are pure functions of them.
"""
