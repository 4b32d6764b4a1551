"""What a terminal shows: runs and main training as they go on, tables, lines and JSON.

Imported by the commands and the demo, never by the library. What is said when is decided by
pure functions that are given the time; drawing it is rich's business.
"""
