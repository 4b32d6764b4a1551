"""Answers on demand: found in the store, rechecked, or computed once for all who ask.

Owns the questions of trainers (`service` for subsets and their keys, `diagnoses`), the one
computation that all who ask the same wait for (`single_flight`), and the runs that are asked
about (`ready_runs`). Imported by `rpc`, `page` and `app`.
"""
