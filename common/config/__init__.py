"""Configuration: validated settings from file, environment and flags, and their messages."""
