"""What both ends of a call need: channels, certificates, errors, and the wire's values."""
