"""Common parts: code shared by at least two of coordinator, worker and trainer."""
