"""Access: who a caller is, and which calls it may make."""
