"""Selection: a strategy, signals and a budget become a subset."""
