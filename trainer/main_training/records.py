"""Records of main training: epochs, the result, and the checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from pydantic import TypeAdapter
from torch import Tensor, nn

from lipt.common.errors import ConfigError, SubsetError, WeightsError
from lipt.common.targets.kinds import TargetKind
from lipt.common.weights.files import pack, read_container
from lipt.common.weights.specs import Weights, check_specs, specs_of
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.writing.files import write_atomically
from lipt.trainer.writing.formatting import differences


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
class Look:
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
    looks: tuple[Look, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Trained(Progress):
    """Result of main training; `weights` is the model's state dict, on the CPU."""

    weights: Weights
    kind: TargetKind

    @property
    def test_accuracy(self) -> float | None:
        """Accuracy after the last step; None without a test set."""
        return self.looks[-1].accuracy if self.looks else None


OnEpoch = Callable[[EpochRecord], None]
OnStep = Callable[[int, int], None]


class JsonLines:
    """Appends records as JSON lines; after a resumption, the later line of an epoch is valid."""

    def __init__(self, path: Path) -> None:
        self._file: TextIO = path.open("a", encoding="utf-8")

    def __call__(self, record: EpochRecord) -> None:
        """Write one record."""
        self._file.write(json.dumps(asdict(record)) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


# A checkpoint is a safetensors file with `model/NAME`, `momentum/NAME`, `source/NAME`, the subset's
# columns `subset/NAME`, and the states of `generator` (CPU) and `cuda_generator`. The metadata
# contains the rest as JSON.

_FORMAT = "lipt-checkpoint-2"
_MAX_TENSORS = 200_000


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
    """Whole state of a training; resuming requires an equal `identity`."""

    progress: Progress
    model: Weights
    momentum: Weights
    subset: Subset | None
    generators: Mapping[str, Tensor]
    identity: Mapping[str, Any]
    source: Mapping[str, Tensor] = field(default_factory=dict)


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Replace the file atomically."""
    tensors = {
        **{f"model/{name}": tensor for name, tensor in checkpoint.model.items()},
        **{f"momentum/{name}": tensor for name, tensor in checkpoint.momentum.items()},
        **{f"source/{name}": tensor for name, tensor in checkpoint.source.items()},
        **checkpoint.generators,
    }
    metadata = {
        "format": _FORMAT,
        "progress": json.dumps(asdict(checkpoint.progress)),
        "identity": json.dumps(checkpoint.identity, sort_keys=True),
    }
    if checkpoint.subset is not None:
        fields = dict(vars(checkpoint.subset))
        for name in [name for name, value in fields.items() if isinstance(value, np.ndarray)]:
            tensors[f"subset/{name}"] = torch.from_numpy(fields.pop(name).copy())
        metadata["subset"] = json.dumps(fields)
    write_atomically(path, pack(tensors, metadata))


def load_checkpoint(path: Path, model: nn.Module, identity: Mapping[str, Any]) -> Checkpoint:
    """Read a checkpoint of the same training; WeightsError for a damaged file."""
    try:
        container = read_container(path, max_bytes=path.stat().st_size, max_tensors=_MAX_TENSORS)
        found = container.metadata
        if found.get("format") != _FORMAT:
            raise ConfigError(
                f"{path} is not a checkpoint of this version. Remove it to train from the start, "
                "or name another file."
            )
        saved_identity = json.loads(found["identity"])
        tensors = {name: container.tensor(name) for name in container.specs}
        progress = TypeAdapter(Progress).validate_json(found["progress"])
        subset = None
        if "subset" in found:
            columns: dict[str, Any] = {
                name: part.numpy() for name, part in _part(tensors, "subset/").items()
            }
            subset = Subset(**columns, **json.loads(found["subset"]))
    except (WeightsError, SubsetError, ValueError, KeyError, TypeError) as error:
        raise WeightsError(
            f"{path} is damaged, or no checkpoint. Remove it to train from the start, or name "
            "another file."
        ) from error
    require_same(path, saved_identity, identity)
    weights = _part(tensors, "model/")
    check_specs(specs_of(weights), specs_of(model.state_dict()))
    return Checkpoint(
        progress=progress,
        model=weights,
        momentum=_part(tensors, "momentum/"),
        subset=subset,
        generators={name: tensors[name] for name in tensors if name.endswith("generator")},
        identity=saved_identity,
        source=_part(tensors, "source/"),
    )


def require_same(path: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raise ConfigError for a checkpoint whose identity differs from `wanted`."""
    part = {name: found.get(name) for name in wanted}
    differing = differences(part, json.loads(json.dumps(wanted)))
    if differing:
        raise ConfigError(
            f"{path} is the checkpoint of another training: {differing}. Remove the file to "
            "train from the start, or give the settings that it was made with."
        )


def generator_states(device: torch.device) -> dict[str, Tensor]:
    """Return the states of torch's generators, which layers such as dropout use."""
    states = {"generator": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda_generator"] = torch.cuda.get_rng_state(device)
    return states


def restore_generators(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Restore the generators' states from a checkpoint."""
    torch.set_rng_state(states["generator"])
    if device.type == "cuda" and "cuda_generator" in states:
        torch.cuda.set_rng_state(states["cuda_generator"], device)


def _part(tensors: Mapping[str, Tensor], prefix: str) -> Weights:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
