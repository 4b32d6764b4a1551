"""Learner: augmented training on one shard, and pruning."""
