"""Learner: one jigsaw piece: augmented training on a shard, and pruning."""
