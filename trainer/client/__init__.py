"""Client: every call that a trainer makes to a coordinator, as plain functions and values.

Imported by all that talks to a coordinator. Here the wire's messages end: a view, a subset
or a file comes out, and nobody above sees protobuf.
"""
