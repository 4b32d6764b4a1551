"""Client: all calls to a coordinator, as plain functions and values without protobuf."""
