"""What a trainer sees of the coordinator: frozen values, never the wire's messages.

Nothing here imports gRPC or torch, so that a notebook, a DataLoader's worker or
a `--help` can import it for free.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # pydantic takes 0.1 s, and only readers of a configuration need it
    from lipt.common.run_config import RunConfig


class RunState(StrEnum):
    """How far a run is; READY, FAILED and CANCELLED are its ends."""

    UNKNOWN = "unknown"
    PENDING = "pending"
    INITIALIZING = "initializing"
    SHARDING = "sharding"
    TRAINING = "training"
    MERGING = "merging"
    READY = "ready"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether nothing will change any more."""
        return self in (RunState.READY, RunState.FAILED, RunState.CANCELLED)


class LearnerState(StrEnum):
    """How far one learner is; DONE, FAILED and DROPPED are its ends."""

    UNKNOWN = "unknown"
    QUEUED = "queued"
    LEASED = "leased"
    DONE = "done"
    FAILED = "failed"
    DROPPED = "dropped"


class WeightsKind(StrEnum):
    """Which of a run's weights: theta* (initial) or theta_p (pretrained)."""

    INITIAL = "initial"
    PRETRAINED = "pretrained"


@dataclass(frozen=True)
class BlobView:
    """A stored blob's name: the digest and size of its content."""

    sha256: str
    size_bytes: int


@dataclass(frozen=True)
class ProgressView:
    """What is being done, and how much of it: `total` is 0 where that is not known."""

    activity: str
    done: int
    total: int


@dataclass(frozen=True)
class IngredientView:
    """A learner's part in the soup: (1 - alpha) soup + alpha learner where it was kept."""

    position: int
    accuracy: float
    soup_accuracy: float
    alpha: float
    kept: bool


@dataclass(frozen=True)
class LearnerView:
    """One learner: where it is trained, how far it is, what became of it."""

    index: int
    state: LearnerState
    density: float
    attempts: int
    worker: str
    device: str
    step: int
    loss: float
    train_seconds: float
    message: str
    result: BlobView | None
    ingredient: IngredientView | None


@dataclass(frozen=True)
class SoupView:
    """Accuracies on the validation split, of theta*, the learners and the soup."""

    initial_accuracy: float
    mean_learner_accuracy: float
    best_learner_accuracy: float
    soup_accuracy: float
    num_kept: int
    num_validation_examples: int


@dataclass(frozen=True)
class CostsView:
    """Seconds per stage, and bytes between the coordinator and its workers."""

    initialization_seconds: float
    sharding_seconds: float
    training_seconds: float
    merging_seconds: float
    bytes_to_workers: int
    bytes_from_workers: int


@dataclass(frozen=True)
class RunView:
    """A run at one revision; a run of a listing comes without its learners."""

    run_id: str
    name: str
    state: RunState
    revision: int
    message: str
    fingerprint: str
    config: RunConfig
    learners: tuple[LearnerView, ...]
    progress: ProgressView | None
    created_at: datetime | None
    ended_at: datetime | None
    soup: SoupView | None
    costs: CostsView | None
    initial_weights: BlobView | None
    pretrained_weights: BlobView | None

    @property
    def ended(self) -> bool:
        """Whether the run is ready, failed or cancelled."""
        return self.state.ended

    @property
    def label(self) -> str:
        """What to call it in a sentence."""
        return self.name or self.run_id


@dataclass(frozen=True)
class StrategyOptionView:
    """One option of a strategy; an empty `allowed_values` means any of the default's kind.

    help: what it is, as a phrase; empty at an older coordinator.
    """

    name: str
    default_value: str
    allowed_values: tuple[str, ...]
    help: str = ""


@dataclass(frozen=True)
class StrategyView:
    """A selection strategy that the coordinator offers.

    needs: what has to be there for it: "labels" alone, "signals", "features",
        "validation split", "learners", "paired features", ...; empty at an older coordinator.
    cost: how its work grows: N examples, C classes, d features, k budget.
    """

    name: str
    summary: str
    paper: str
    returns_weights: bool
    balanced_by_default: bool
    options: tuple[StrategyOptionView, ...]
    needs: tuple[str, ...] = ()
    cost: str = ""


@dataclass(frozen=True)
class DatasetView:
    """The coordinator's data set."""

    source: str
    num_examples: int
    class_names: tuple[str, ...]
    class_counts: tuple[int, ...]
    fingerprint: str
    image_shape: tuple[int, int, int]


@dataclass(frozen=True)
class WorkerView:
    """A worker that the coordinator knows; `assignment` is "run/learner" or empty."""

    worker_id: str
    name: str
    device: str
    versions: Mapping[str, str]
    assignment: str
    seconds_since_heard: float


@dataclass(frozen=True)
class InfoView:
    """Who answers: protocol, versions, data, defaults and workers."""

    protocol: tuple[int, int]
    versions: Mapping[str, str]
    device: str
    dataset: DatasetView | None
    default_run: RunConfig
    workers: tuple[WorkerView, ...]


def to_jsonable(value: Any) -> Any:
    """A view, or anything made of views, as values that `json.dumps` takes.

    Field names are the keys; times are ISO 8601; a float that JSON has no
    literal for (a diverged loss) is null.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: to_jsonable(getattr(value, field.name))
            for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {str(key): to_jsonable(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_jsonable(item) for item in value]
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    dump = getattr(value, "model_dump", None)
    return to_jsonable(dump(mode="json")) if dump else value
