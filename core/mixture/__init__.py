"""Mixtures: how much of each source to train on for a target."""
