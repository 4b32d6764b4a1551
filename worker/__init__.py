"""The worker: fetches theta* and a shard, trains and prunes a learner, commits it."""
