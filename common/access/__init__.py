"""Access: who calls, and what they may do, as both ends of a call see it."""
