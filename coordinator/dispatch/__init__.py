"""Dispatch: leases learners and ranges to workers; a restart rebuilds it from run records."""
