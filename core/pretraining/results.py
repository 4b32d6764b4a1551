"""Results of pre-training: submitted learners, and their part in the soup."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict
from torch import Tensor

from lipt.common.blobs.blob import BlobName
from lipt.common.config.run_config import RunConfig
from lipt.common.nested import parse_json
from lipt.common.states import Divergence
from lipt.common.tensor_files import TensorSpec, Weights, pack
from lipt.data.inputs.specs import InputFormat
from lipt.models.encodings import open_weights

# Metadata key of theta*'s file: tensors that learners' files omit, as a JSON list of sorted names.
# They allow checking a learner without the model. Absent without frozen layers.
_KEY = "lipt.frozen"


def divergence_message(divergences: Sequence[Divergence], num_learners: int) -> str:
    """One message on all learners that diverged, with the first one's values and step."""
    which = "all" if len(divergences) == num_learners else f"{len(divergences)} of"
    return (
        f"{which} {num_learners} learners diverged ({divergences[0]}). Scale the features, or "
        "lower learners.learning_rate."
    )


@dataclass(frozen=True)
class CommittedLearner:
    """A learner's files: its snapshots, in order, and its result."""

    index: int
    snapshots: tuple[BlobName, ...]
    result: BlobName


@dataclass(frozen=True)
class Trajectories:
    """theta* and the learners that started from it, ascending by index."""

    initial_weights: BlobName
    learners: tuple[CommittedLearner, ...]


class Ingredient(BaseModel):
    """A learner's part in the soup.

    accuracy: of the learner alone. soup_accuracy: of the soup after the learner was offered.
    alpha: of (1 - alpha) soup + alpha ingredient; 0 if it was discarded.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    position: int
    accuracy: float
    soup_accuracy: float
    alpha: float
    kept: bool


@dataclass(frozen=True)
class PretrainingState:
    """The state of a run's pre-training; `name` is for messages.

    inputs, theta* and theta_p are None until they are made. learners: arrived, ascending by index.
    """

    name: str
    config: RunConfig
    inputs: InputFormat | None
    initial_weights: BlobName | None
    pretrained_weights: BlobName | None
    learners: tuple[CommittedLearner, ...]

    @property
    def trajectories(self) -> Trajectories:
        if self.initial_weights is None:
            raise ValueError(f"run {self.name} has no theta* yet")
        return Trajectories(self.initial_weights, self.learners)


def pack_initial(weights: Weights, frozen: Collection[str]) -> bytes:
    """Content of theta*'s file, with the names of the frozen tensors."""
    return pack(weights, {_KEY: json.dumps(sorted(frozen))} if frozen else None)


def frozen_names_of(metadata: Mapping[str, str]) -> frozenset[str]:
    return frozenset(parse_json(metadata.get(_KEY, "[]")))


def open_learner(
    source: bytes | Path, specs: Mapping[str, TensorSpec], frozen: Weights
) -> Mapping[str, Tensor]:
    """A result or snapshot as a whole state, decoded on access; errors as `open_weights`."""
    like = {name: spec for name, spec in specs.items() if name not in frozen}
    opened = open_weights(source, like=like)
    return _Whole(specs, frozen, opened) if frozen else opened


@dataclass(frozen=True, eq=False)
class _Whole(Mapping[str, Tensor]):
    specs: Mapping[str, TensorSpec]
    frozen: Weights
    trained: Mapping[str, Tensor]

    def __getitem__(self, name: str) -> Tensor:
        return self.frozen[name] if name in self.frozen else self.trained[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.specs)

    def __len__(self) -> int:
        return len(self.specs)
