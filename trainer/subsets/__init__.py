"""Subsets: the value, its files, its data and its loss weights; needs no coordinator."""
