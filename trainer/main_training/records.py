"""Records of main training: epochs, the result, and the checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self, TextIO

import numpy as np
import torch
from pydantic import TypeAdapter
from torch import Tensor, nn

from lipt.common.errors import ConfigError, SubsetError, WeightsError
from lipt.common.nested import parse_json
from lipt.common.tensor_files import Weights, check_specs, pack, read_container, specs_of
from lipt.data.targets.kinds import TargetKind
from lipt.models.own_model import plain_state
from lipt.trainer.files import write_atomically
from lipt.trainer.formatting import differences
from lipt.trainer.main_training.recipe import Recipe
from lipt.trainer.subsets.subset import Subset


@dataclass(frozen=True)
class EpochRecord:
    """Metrics after an epoch, counted from 1; `accuracy` is on augmented images.

    `test_accuracy` and `subset_accuracy` (not augmented) are the epoch's last evaluations, if any.
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
class Evaluation:
    """One evaluation on the test set after `step`; training `seconds` exclude evaluations."""

    step: int
    seconds: float
    accuracy: float


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Progress of training; `seconds` include evaluations.

    `subset_accuracies` are (step, accuracy without augmentation), in order.
    """

    epoch: int
    step: int
    num_steps: int
    seconds: float
    subset_accuracies: tuple[tuple[int, float], ...] = ()
    evaluation_seconds: float = 0.0
    evaluations: tuple[Evaluation, ...] = ()


@dataclass(frozen=True, kw_only=True, repr=False)
class Trained(Progress):
    """Result of main training; `weights` is the model's state dict, on the CPU.

    `recipe` has the augmentation that was fitted to the data in place of `auto`.
    """

    weights: Weights
    kind: TargetKind
    recipe: Recipe

    @property
    def test_accuracy(self) -> float | None:
        """Accuracy after the last step; None without a test set."""
        return self.evaluations[-1].accuracy if self.evaluations else None

    def __repr__(self) -> str:
        accuracy = self.test_accuracy
        tested = "" if accuracy is None else f"; test {self.kind.score_name} {accuracy:.1%}"
        steps = f"{self.step:,} of {self.num_steps:,} steps in {self.seconds:.1f} s"
        return f"<Trained {steps}{tested}; {self.recipe.augmentation_text}>"


OnEpoch = Callable[[EpochRecord], None]
OnStep = Callable[[int, int], None]


def write_line(file: TextIO, record: EpochRecord) -> None:
    """Append a record as a JSON line; after a resumption, an epoch's later line is valid."""
    file.write(json.dumps(asdict(record)) + "\n")
    file.flush()


_FORMAT = "lipt-checkpoint-3"
_MAX_TENSORS = 200_000
_PARTS = ("model", "momentum", "generators")


class TrainingPaused(Exception):  # noqa: N818 - it was asked for, and nothing went wrong
    """The time limit is reached; the same call continues from `checkpoint`."""

    def __init__(self, checkpoint: Path, progress: Progress) -> None:
        super().__init__(
            f"the time is up: {checkpoint} holds training after step {progress.step} of "
            f"{progress.num_steps}. The same call goes on from there."
        )
        self.checkpoint, self.progress = checkpoint, progress


@dataclass(frozen=True)
class Checkpoint:
    """Whole state of a training; resuming requires an equal `identity`.

    A safetensors file holds the tensors as PART/NAME, and the subset's columns as subset/NAME. Its
    metadata has the rest as JSON.
    """

    progress: Progress
    model: Weights
    momentum: Weights
    subset: Subset | None
    generators: Mapping[str, Tensor]
    identity: Mapping[str, Any]

    def save(self, path: Path) -> None:
        tensors = {
            f"{part}/{name}": tensor
            for part in _PARTS
            for name, tensor in getattr(self, part).items()
        }
        metadata = {
            "format": _FORMAT,
            "progress": json.dumps(asdict(self.progress)),
            "identity": json.dumps(self.identity, sort_keys=True),
        }
        if self.subset is not None:
            fields = dict(vars(self.subset))
            for name in [name for name, value in fields.items() if isinstance(value, np.ndarray)]:
                tensors[f"subset/{name}"] = torch.from_numpy(fields.pop(name).copy())
            metadata["subset"] = json.dumps(fields)
        write_atomically(path, pack(tensors, metadata))

    @classmethod
    def load(cls, path: Path, model: nn.Module, identity: Mapping[str, Any]) -> Self:
        """Read a checkpoint of the same training; WeightsError for a damaged file."""
        tensors: dict[str, Weights] = {part: {} for part in (*_PARTS, "subset")}
        try:
            size = path.stat().st_size
            container = read_container(path, max_bytes=size, max_tensors=_MAX_TENSORS)
            facts = container.metadata
            if facts.get("format") != _FORMAT:
                raise ConfigError(
                    f"{path} is not a checkpoint of this version. Remove it to train from the "
                    "start, or name another file."
                )
            for full_name in container.specs:
                part, _, name = full_name.partition("/")
                tensors[part][name] = container.tensor(full_name)
            saved_identity = parse_json(facts["identity"])
            progress = TypeAdapter(Progress).validate_json(facts["progress"])
            columns: Any = {name: part.numpy() for name, part in tensors.pop("subset").items()}
            subset = Subset(**columns, **parse_json(facts["subset"])) if "subset" in facts else None
        except (WeightsError, SubsetError, ValueError, KeyError, TypeError) as error:
            raise WeightsError(
                f"{path} is damaged, or no checkpoint. Remove it to train from the start, or name "
                "another file."
            ) from error
        require_same(path, saved_identity, identity)
        check_specs(specs_of(tensors["model"]), specs_of(plain_state(model)))
        return cls(progress=progress, subset=subset, identity=saved_identity, **tensors)


def require_same(path: Path, stored: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    part = {name: stored.get(name) for name in expected}
    differing = differences(part, json.loads(json.dumps(expected)))
    if differing:
        raise ConfigError(
            f"{path} is the checkpoint of another training: {differing}. Remove the file to "
            "train from the start, or give the settings that it was made with."
        )


def generator_states(device: torch.device) -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def restore_generators(states: Mapping[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
