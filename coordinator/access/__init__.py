"""Access: identities of callers, and the calls that their roles allow."""
