"""What two of coordinator, worker and trainer share."""
