"""Strategies: selection algorithms, with the helpers that belong to them."""
