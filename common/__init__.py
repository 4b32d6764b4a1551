"""Common parts: what at least two of coordinator, worker and trainer share."""
