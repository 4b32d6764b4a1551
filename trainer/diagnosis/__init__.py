"""The trainer's view of a diagnosis: its columns, findings and file."""
