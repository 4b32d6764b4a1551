"""The decision of `auto`: evidence from the data, a plan, and typed findings."""
