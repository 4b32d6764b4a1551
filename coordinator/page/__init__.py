"""Page: what a browser shows of this coordinator, over HTTP beside the gRPC server.

Handlers are thin: they ask the services that gRPC's servicers ask, for a caller that the same
access table lets in.
"""
