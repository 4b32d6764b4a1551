"""Reference main training: a subset, a model and the paper's recipe."""

from lipt.trainer.main_training.recipe import Recipe, Schedule, evenly
from lipt.trainer.main_training.records import Trained, TrainingPaused
from lipt.trainer.main_training.training import fit

__all__ = ["Recipe", "Schedule", "Trained", "TrainingPaused", "evenly", "fit"]
