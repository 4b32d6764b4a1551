"""Planning: what a computation will cost, before it runs."""
