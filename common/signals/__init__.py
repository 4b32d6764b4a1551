"""Signals' computing: what a model makes of examples, wherever they and the device are.

Owns batches of a data set as a model takes them, and the one pass over them. For the coordinator,
and for whoever looks at a part of the data for it.
"""
