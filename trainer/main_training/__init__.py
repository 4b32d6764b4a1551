"""Reference main training: a subset, a model and the paper's recipe."""

from lipt.trainer.main_training.checkpoints import TrainingPaused
from lipt.trainer.main_training.fit import fit
from lipt.trainer.main_training.recipe import Recipe
from lipt.trainer.main_training.records import Trained
from lipt.trainer.main_training.schedule import Schedule, evenly

__all__ = ["Recipe", "Schedule", "Trained", "TrainingPaused", "evenly", "fit"]
