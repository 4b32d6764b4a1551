"""Display of runs and main training on a terminal, as tables, lines or JSON."""
