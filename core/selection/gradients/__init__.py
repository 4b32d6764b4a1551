"""Gradients: the algebra of last-layer gradients, which are never written out."""
