"""Writing: whole files, JSON, numbers for people, and differences in words."""
