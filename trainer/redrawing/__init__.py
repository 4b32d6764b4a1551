"""Redrawing: other examples in every epoch, in place of a fixed subset.

One file per way to draw them, each with its source, and the sampler that hands them to a
DataLoader. Imported by training scripts and by main training; it asks nobody.
"""
