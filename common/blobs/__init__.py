"""Big immutable values, named by what they contain: kept on disk, and moved between peers."""
