"""Page: what a browser shows of this coordinator, over HTTP beside the gRPC server."""
