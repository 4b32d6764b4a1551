"""The contract's servicers: read the request, delegate, answer. No decision lives here."""
