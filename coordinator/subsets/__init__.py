"""Answers on demand: found in the store, rechecked, or computed once for all who ask.

Owns the questions of trainers (`service` for subsets, `diagnoses`), the one computation that all
who ask the same wait for (`single_flight`), the key that an answer is stored under (`identity`),
and the runs that are asked about (`ready_runs`). Imported by `rpc`, `page` and `app`.
"""
