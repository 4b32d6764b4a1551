"""Access: who a caller is, and what the coordinator lets them do."""
