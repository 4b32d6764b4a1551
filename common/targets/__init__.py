"""Targets: what a model is trained to give of an example, of three kinds.

One class of several (single-label), any of several labels (multi-label), or numbers (regression).
Owns what depends on the kind: the loss, its gradient by the model's outputs, the score that
weights are judged by, and the strata that examples are grouped in. For all three processes.
"""

from lipt.common.targets.kinds import TargetKind
from lipt.common.targets.multi_label import MultiLabel
from lipt.common.targets.regression import Regression
from lipt.common.targets.single_label import SingleLabel
from lipt.common.targets.target import Tally, Target

__all__ = ["MultiLabel", "Regression", "SingleLabel", "Tally", "Target", "TargetKind"]
