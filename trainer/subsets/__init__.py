"""Subsets: the value itself, its files, the data that it belongs to, and its weights in a loss.

Imported by everything that gets, keeps or trains on a subset; needs no coordinator.
"""
