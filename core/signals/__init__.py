"""Signals: values of each example that strategies select on, computed and stored."""
