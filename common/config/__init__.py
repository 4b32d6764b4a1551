"""Configuration: validated settings and their messages; file, environment and flags."""
