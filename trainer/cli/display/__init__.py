"""Displays: what a terminal shows of runs and main training, as tables, lines or JSON.

Imported by the commands and the demo, never by the library. What is said when is decided by
pure functions that are given the time; drawing it is rich's business.
"""
