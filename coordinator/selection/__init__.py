"""Selection strategies, one per file, and the service's one way to apply them."""
