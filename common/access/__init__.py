"""Access: callers' identities and roles, for both ends of a call."""
