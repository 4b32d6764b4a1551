"""RPC: channels, errors as statuses, and protobuf messages as values."""
