"""Subsets: the value, its files, its data and its loss weights; needs no coordinator."""

# Default number of examples per shard of an exported subset.
EXAMPLES_PER_SHARD = 10_000
