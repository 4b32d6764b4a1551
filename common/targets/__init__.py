"""Targets: what a model is trained to give of an example, of three kinds.

One class of several (single-label), any of several labels (multi-label), or numbers (regression).
Owns what depends on the kind: the loss, its gradient by the model's outputs, the score that
weights are judged by, and the strata that examples are grouped in. For all three processes.
"""
