"""Signals: errors and features of examples, in passes over the data or ranges of it."""
