"""RPC: channels, errors as statuses, protobuf messages as values, and the protocol's numbers.

Owns what every call has in common, on both ends. What is particular to blobs or to configuration
stands in `blobs/blob.py` and `config/values.py`. Only servicers and clients import it:
algorithms see no message.
"""
