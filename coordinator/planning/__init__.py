"""Planning: a run's costs, and whether it is admitted."""
