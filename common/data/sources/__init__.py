"""Sources: where examples come from, one format a module, opened by the registry."""
