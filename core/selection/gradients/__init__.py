"""Gradients: the algebra of last-layer gradients, which are never written out.

It owns products, cosines, distances, sums and steps of e_i (x) [h_i, 1], computed from the two
factors. Solvers and strategies import this folder; it imports signals.
"""
