"""Subsets and diagnoses on demand: computed once, stored, and answered from the store."""
