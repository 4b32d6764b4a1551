"""Subsets: the value itself, its files, the data that it belongs to, and its weights in a loss.

Imported by everything that gets, keeps or trains on a subset; needs no coordinator.
"""

# Where a subset's examples are written out, and nobody has said how many go into one file.
EXAMPLES_PER_SHARD = 10_000
