"""Learners as they come back: what each handed in, and what the soup made of it."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from lipt.common.blobs.blob import BlobName
from lipt.common.config.run_config import RunConfig
from lipt.common.inputs.specs import InputFormat


@dataclass(frozen=True)
class CommittedLearner:
    """What a learner handed in: its states on the way, in order, and its result."""

    index: int
    snapshots: tuple[BlobName, ...]
    result: BlobName


@dataclass(frozen=True)
class Trajectories:
    """Where all learners came from, and what each became; ascending by index."""

    initial_weights: BlobName
    learners: tuple[CommittedLearner, ...]


class Ingredient(BaseModel):
    """A learner's part in the soup."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # Place in the soup's order, from 0.
    position: int
    # Alone, on the validation split.
    accuracy: float
    # Of the soup after it was offered.
    soup_accuracy: float
    # (1 - alpha) soup + alpha ingredient; 0 where it was discarded.
    alpha: float
    kept: bool


@dataclass(frozen=True)
class Outcome:
    """What pre-training has led to so far.

    Attributes:
        name: of the run, for messages.
        config: of the run.
        inputs: what models are given; None until theta* is made.
        initial_weights: theta*, likewise.
        pretrained_weights: theta_p; None until the soup is made.
        learners: those that are in, ascending by index.
    """

    name: str
    config: RunConfig
    inputs: InputFormat | None
    initial_weights: BlobName | None
    pretrained_weights: BlobName | None
    learners: tuple[CommittedLearner, ...]

    @property
    def trajectories(self) -> Trajectories:
        """Where the learners came from, and what each became."""
        if self.initial_weights is None:
            raise ValueError(f"run {self.name} has no theta* yet")
        return Trajectories(self.initial_weights, self.learners)
