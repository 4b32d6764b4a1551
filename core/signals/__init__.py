"""Signals: what the run's models say of each example, and nothing of what is done with it.

It owns the per-example values that strategies select on (errors, features, gradient norms,
the learners' dynamics, the user's own features), how they are computed, kept and placed, and
the quadratic model of the loss by which a subset is judged stale. Selection and the compute
jobs import it; it imports pretraining and what is below.
"""
