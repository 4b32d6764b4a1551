"""Evaluation: accuracy of a model on the validation split."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Generic, TypeVar, overload

import torch
from torch import Tensor, nn

from lipt.common.determinism import pinned_kernels
from lipt.common.errors import ConfigError
from lipt.common.inputs.model_input import (
    Stored,
    num_stored,
    split_evenly,
    split_stored,
    to_model_input,
)
from lipt.common.inputs.specs import ImageSpec, InputFormat, Inputs, InputSpec, call_model
from lipt.common.models import find_head, forward_with_features
from lipt.common.models.head import evaluation_mode, head_names
from lipt.common.targets.values import Target
from lipt.common.weights.encodings import open_weights
from lipt.common.weights.files import pack
from lipt.common.weights.specs import TensorSpec, Weights
from lipt.core.batch_norm import (
    batch_norm_statistics,
    has_batch_norm,
    reestimate_batch_norm,
)

# Frozen part: what learners have of theta* as it is, and what they hand in without it.
#
# A learner's file has what it trained alone. theta*'s own file says in its metadata, under
# `lipt.frozen`, which of its tensors that leaves out, as a JSON list of sorted names: who checks
# what comes in needs neither the model nor the patterns. A run without frozen layers has no such
# entry.

_KEY = "lipt.frozen"


def pack_initial(weights: Weights, frozen: Collection[str]) -> bytes:
    """theta*'s file; `frozen` names what learners leave as it is."""
    return pack(weights, {_KEY: json.dumps(sorted(frozen))} if frozen else None)


def frozen_in(metadata: Mapping[str, str]) -> frozenset[str]:
    """What `pack_initial` was told, from the file's metadata."""
    return frozenset(json.loads(metadata.get(_KEY, "[]")))


@dataclass(frozen=True)
class LearnerReader:
    """Opens learners' files as whole states of their model.

    specs: the model's tensors.
    frozen: those of theta* that no learner changes; shared among all that is opened.
    """

    specs: Mapping[str, TensorSpec]
    frozen: Weights

    @classmethod
    def of(
        cls, specs: Mapping[str, TensorSpec], initial: Mapping[str, Tensor], frozen: Collection[str]
    ) -> LearnerReader:
        """A reader that keeps of theta* no more than it needs."""
        return cls(specs, {name: initial[name] for name in specs if name in frozen})

    def open(self, source: bytes | Path) -> Mapping[str, Tensor]:
        """Open a result or a snapshot; each access decodes a tensor anew, or gives theta*'s own.

        Raises:
            BlobTooLargeError, WeightsError: as `open_weights`.
        """
        trained = {name: spec for name, spec in self.specs.items() if name not in self.frozen}
        opened = open_weights(source, like=trained)
        return _Whole(self.specs, self.frozen, opened) if self.frozen else opened


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


# Prepared inputs: made once, as long as they take little memory, for many passes of a model.

# Of inputs of the validation split, of those of batch norm, and of features, each.
_MOST_KEPT_BYTES = 256 * 1024**2
InputsT = TypeVar("InputsT", bound=Inputs)


class Kept(Generic[InputsT]):
    """What was made for batches, by their numbers, as far as it fits; for several threads."""

    def __init__(self) -> None:
        self._values: dict[int, InputsT] = {}
        self._num_bytes = 0
        self._lock = threading.Lock()

    def find(self, number: int) -> InputsT | None:
        """What is kept for a batch, if it is."""
        return self._values.get(number)

    def keep(self, number: int, value: InputsT) -> None:
        """Keep it where there is room, and it is not there yet."""
        tensors = [value] if isinstance(value, Tensor) else value.values()
        num_bytes = sum(tensor.nbytes for tensor in tensors)
        with self._lock:
            fits = self._num_bytes + num_bytes <= _MOST_KEPT_BYTES
            if fits and number not in self._values:
                self._values[number] = value
                self._num_bytes += num_bytes


@dataclass(frozen=True)
class PreparedInputs(Sequence[Inputs]):
    """Batches of stored examples as model inputs; the first ones, that fit in memory, are kept."""

    stored: Sequence[Stored]
    inputs: InputFormat
    device: torch.device | str
    kept: Kept[Inputs] = field(default_factory=Kept)

    def __len__(self) -> int:
        return len(self.stored)

    @overload
    def __getitem__(self, number: int) -> Inputs: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Inputs]: ...
    def __getitem__(self, number: int | slice) -> Inputs | Sequence[Inputs]:
        if isinstance(number, slice):
            return [self[one] for one in range(len(self))[number]]
        inputs_B = self.kept.find(number)
        if inputs_B is None:
            inputs_B = to_model_input(self.stored[number], self.inputs, self.device)
            self.kept.keep(number, inputs_B)
        return inputs_B


# Validation score: what the soup decides by; of classes, the accuracy.
#
# Scores are counted, not averaged over batches, so that equal predictions are
# equal scores whatever the batch size. Small splits are normalized once; of large ones
# images stay uint8 and are normalized batch by batch: ImageNet's as floats would take 15 GB.
#
# Shapes: N examples, M for batch norm, B of them in a batch, C classes.


def batch_size_for(inputs: InputSpec, device: torch.device) -> int:
    """Examples per forward pass: as many as stay in a CPU's cache, or keep a GPU busy.

    On a CPU 64 of 32x32 pixels, and in proportion, within 16..1024; other examples count by
    their numbers.
    """
    if device.type != "cpu":
        return 256
    if isinstance(inputs, ImageSpec):
        size = inputs.height * inputs.width
    else:
        size = sum(math.prod(column.shape) for column in inputs.columns)
    return min(1024, max(16, 64 * 32 * 32 // size))


@dataclass(frozen=True)
class Scored:
    """What an evaluation found out about weights."""

    # The score of other targets than classes; -infinity of weights that were given up.
    accuracy: float
    # Entries that take the place of those evaluated: their batch-norm statistics.
    mended: Weights


def batch_norm_inputs(
    examples_M: Stored, inputs: InputFormat, device: torch.device | str, *, batch_size: int
) -> Iterator[Inputs]:
    """Model inputs to estimate batch-norm statistics on, in parts of at most `batch_size`.

    Args:
        examples_M: as they are stored, at least one.
        inputs: what models are given of them.
        device: where the inputs go.
        batch_size: examples per part; the parts are even, because a last one of a single
            example would have no variance.
    """
    for examples_B in _even_parts(examples_M, batch_size):
        yield to_model_input(examples_B, inputs, device)


def _even_parts(examples_M: Stored, batch_size: int) -> Iterator[Stored]:
    return split_evenly(examples_M, -(-num_stored(examples_M) // batch_size))


@dataclass(frozen=True)
class Evaluator:
    """Scores weights on the validation split, their batch-norm statistics mended first.

    What is the same for all weights is made once, as long as it takes little memory: model inputs,
    and where the head alone differs, the features that enter it.

    Attributes:
        model: on `device`; takes on the weights of each call, its training flags are restored.
        inputs: what it is given of the examples.
        device: where the model is.
        examples_N: as they are stored.
        target: what the model is to give of them.
        targets_N: as `target` takes them.
        batch_norm_examples_M: training examples; None evaluates with the statistics that the
            weights came with.
        batch_size: examples per forward pass.
        frozen: names in the state dict that are the same in all weights.
    """

    model: nn.Module
    inputs: InputFormat
    device: torch.device | str
    examples_N: Stored
    target: Target
    targets_N: Tensor
    batch_norm_examples_M: Stored | None
    batch_size: int = 128
    frozen: frozenset[str] = frozenset()

    def __call__(self, weights: Mapping[str, Tensor], floor: float = -math.inf) -> Scored:
        """The score of `weights`, and the statistics that it was reached with.

        Args:
            weights: the model's; asked for each tensor once, and none is kept.
            floor: weights are given up as soon as it is certain that they are not above it.

        Raises:
            ConfigError: there are no examples.
        """
        mended = self.take_on(weights)
        return Scored(self._score(floor), mended)

    def twin(self, model: nn.Module) -> Evaluator:
        """Another one that may run at the same time: what is made once is made once for both.

        Args:
            model: the same as `self.model`, and not it.
        """
        twin = replace(self, model=model)
        for name in ("batches", "batch_norm_batches", "_features", "targets"):
            twin.__dict__[name] = getattr(self, name)
        return twin

    def take_on(self, weights: Mapping[str, Tensor]) -> Weights:
        """Load the weights and mend their statistics, which are returned."""
        for name, tensor in self.model.state_dict().items():
            tensor.copy_(weights[name])
        if not self.mends:
            return {}
        with pinned_kernels():
            reestimate_batch_norm(self.model, self.batch_norm_batches, self.frozen)
        return batch_norm_statistics(self.model, self.frozen)

    @property
    def mends(self) -> bool:
        """Whether weights' statistics are estimated again."""
        wanted = self.batch_norm_examples_M is not None
        return wanted and has_batch_norm(self.model, self.frozen)

    @torch.inference_mode()
    def _score(self, floor: float) -> float:
        """The score, or -infinity once it cannot be above the floor any more."""
        if not len(self.targets_N):
            raise ConfigError(
                "accuracy over 0 examples is undefined. Hold out a larger validation.fraction."
            )
        tally, num_left = self.target.tally(), len(self.targets_N)
        with evaluation_mode(self.model), pinned_kernels():
            for number, targets_B in enumerate(self.targets):
                tally.add(self.outputs(number), targets_B)
                num_left -= len(targets_B)
                if floor > -math.inf and tally.best_possible(num_left) <= floor:
                    return -math.inf
        return tally.score()

    def outputs(self, number: int) -> Tensor:
        """What the model makes of a batch."""
        if self.head is None:
            return call_model(self.model, self.batches[number])
        known_BD = self._features.find(number)
        if known_BD is None:
            outputs_BT, features_BD = forward_with_features(self.model, self.batches[number])
            self._features.keep(number, features_BD)
        else:
            outputs_BT = self.head(known_BD)
        return outputs_BT

    @cached_property
    def head(self) -> nn.Linear | None:
        """The last layer where it alone differs between weights; None where more does."""
        if not self.frozen:
            return None
        differs = self.model.state_dict().keys() - self.frozen
        return find_head(self.model)[1] if differs == head_names(self.model) else None

    @cached_property
    def _features(self) -> Kept[Tensor]:
        return Kept()

    @cached_property
    def targets(self) -> tuple[Tensor, ...]:
        """Of each batch, where the model is."""
        batches = torch.split(self.targets_N, self.batch_size)
        return tuple(targets_B.to(self.device) for targets_B in batches)

    @cached_property
    def batches(self) -> Sequence[Inputs]:
        """Of the validation split."""
        parts = list(split_stored(self.examples_N, self.batch_size))
        return PreparedInputs(parts, self.inputs, self.device)

    @cached_property
    def batch_norm_batches(self) -> Sequence[Inputs]:
        """What statistics are estimated on; none where they are not."""
        if self.batch_norm_examples_M is None:
            return ()
        parts = list(_even_parts(self.batch_norm_examples_M, self.batch_size))
        return PreparedInputs(parts, self.inputs, self.device)
