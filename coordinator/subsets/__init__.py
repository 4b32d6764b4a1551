"""Subsets and diagnoses on demand: computed once, stored, and read from the store."""
