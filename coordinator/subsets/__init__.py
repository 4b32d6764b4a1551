"""Subsets on demand: found in the store, rechecked, or computed once for all who ask.

Owns the question that a trainer asks (`service`), the one computation that all who ask it wait
for (`single_flight`), and what is sent of the answer (`sending`); diagnoses and a run's weights
(`weights`) are had in the same way. Imported by `rpc` and `app`.
"""
