"""Sources: readers of examples, one format a module, opened by the registry."""
