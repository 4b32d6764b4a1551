"""Planning: what a run will take, and whether it is admitted."""
