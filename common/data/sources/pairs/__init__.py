"""Pairs: images and their captions, embedded by two towers of the user's.

Owns how pairs are found, what towers are given and have to give, and the latent classes.
"""
