"""The GPU box: fetch, augment, train, prune, submit."""
