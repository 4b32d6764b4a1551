"""Atomic files, JSON values, and formatted numbers and differences."""
