"""Writing: whole files, JSON, numbers for people, and differences in words.

The floor of this package: it imports none of the rest and anybody may import it.
"""
