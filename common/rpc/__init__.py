"""RPC: channels, errors as statuses, and protobuf messages as values, for both ends of a call."""
