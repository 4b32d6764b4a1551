"""Page: what a browser shows of this coordinator, over HTTP beside the gRPC server.

Handlers are thin: they call the services of gRPC's servicers, for callers that the same access
table lets in.
"""
