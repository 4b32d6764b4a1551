"""Displays: what a terminal shows of runs and main training, as tables, lines or JSON."""
