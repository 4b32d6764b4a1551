"""Records of main training: one per epoch, as a value and as a line of JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from lipt.common.targets.kinds import TargetKind
from lipt.common.weights.specs import Weights


@dataclass(frozen=True)
class EpochRecord:
    """Where training stands after an epoch.

    epoch: from 1. step: optimizer steps so far, of num_steps.
    loss: mean over the epoch's examples, weighted as it was trained on.
    accuracy: on the epoch's augmented images, as they were trained on.
    test_accuracy: where the test set was looked at after this epoch.
    subset_accuracy: on the subset's images without augmentation, likewise.
    """

    epoch: int
    step: int
    num_steps: int
    num_examples: int
    loss: float
    accuracy: float
    learning_rate: float
    images_per_second: float
    seconds: float
    seconds_left: float
    test_accuracy: float | None = None
    subset_accuracy: float | None = None
    subset_digest: str = ""


@dataclass(frozen=True)
class Look:
    """One look at the test set in the course of training.

    step: optimizer steps until then.
    seconds: of training until then, without the time that accuracies took.
    accuracy: in [0, 1].
    """

    step: int
    seconds: float
    accuracy: float


@dataclass(frozen=True)
class Trained:
    """The result of main training.

    weights: the model's state dict, on the CPU.
    kind: of the targets, which says what an accuracy is: of others than classes, another score.
    evaluation_seconds: those of `seconds` that accuracies took.
    test_accuracy: after the last step; None without a test set.
    subset_accuracies: (step, accuracy on the subset without augmentation), in order.
    looks: every time that the test set was looked at, in order.
    """

    weights: Weights
    num_steps: int
    seconds: float
    test_accuracy: float | None
    subset_accuracies: tuple[tuple[int, float], ...]
    evaluation_seconds: float = 0.0
    looks: tuple[Look, ...] = ()
    kind: TargetKind = TargetKind.CLASS


OnEpoch = Callable[[EpochRecord], None]
OnStep = Callable[[int, int], None]


class JsonLines:
    """Appends every record to a file, one JSON object per line, on disk at once.

    Training that was killed and goes on writes the epochs since its checkpoint again: of
    two lines with one epoch the later one counts.
    """

    def __init__(self, path: Path) -> None:
        self._file: TextIO = path.open("a", encoding="utf-8")

    def __call__(self, record: EpochRecord) -> None:
        """Write one record."""
        self._file.write(json.dumps(asdict(record)) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
