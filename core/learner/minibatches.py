"""Minibatches: a learner's examples in the order of its passes, ready before it is their turn.

What has to be decoded or augmented is so in a thread, while the model is trained on the minibatch
before. The thread makes one after the other, so that a pass's generator draws as it would without
it, and a learner is the same to the bit. An accelerator augments by itself, in its own queue; for
it the thread decodes, into memory from which pixels are sent without waiting.

Shapes: N examples of the shard, B of a minibatch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from lipt.common.config.run_config import AugmentationMethod
from lipt.common.config.tasks import LearnerTask
from lipt.common.data.parallel import reading_ahead
from lipt.common.data.shard import EncodedImages
from lipt.common.determinism import derive_generator
from lipt.common.inputs.model_input import Stored, pinned, rows_of, stored_on
from lipt.core.learner.augmentation import augment

Examples = Stored | EncodedImages


@dataclass(frozen=True)
class BatchTimes:
    """When a minibatch was made and taken, in seconds of `time.perf_counter`.

    read_from: its examples were being read from then on.
    augmented_from: they were there, and augmented from then on; not on an accelerator.
    ready: all that is done beforehand was done.
    asked: training asked for it, the step before being over.
    taken: training had it.
    """

    read_from: float
    augmented_from: float
    ready: float
    asked: float
    taken: float

    @property
    def waited(self) -> float:
        """Seconds for which training waited for it."""
        return self.taken - self.asked


@dataclass(frozen=True)
class Minibatch:
    """What a step is done on: augmented examples and their targets, on the device."""

    examples_B: Stored
    targets_B: Tensor
    times: BatchTimes


@dataclass(frozen=True)
class _Part:
    """Rows of a minibatch, and what its pass draws from."""

    rows_B: Tensor
    draws: torch.Generator


@dataclass(frozen=True)
class _Read:
    """A minibatch as the thread leaves it, and when it began, went on to augment, and ended."""

    part: _Part
    examples_B: Stored
    times: tuple[float, float, float]


@contextmanager
def minibatches(
    task: LearnerTask, examples: Examples, targets_N: Tensor, device: torch.device
) -> Iterator[Iterator[Minibatch]]:
    """Those of all passes, one pass after another; a context, so that its thread ends with it.

    Args:
        task: how large they are, how augmented, and the seed of each pass's order and draws.
        examples: as they are stored, on the device; or encoded.
        targets_N: of the examples, on the device.
        device: where a minibatch is wanted.

    Yields:
        The minibatches. Asking for one raises DataError where an image of it cannot be decoded.
        No more than the next two are made beforehand.
    """
    made = _Making(task, examples, targets_N, device)
    with made.reading() as reads:
        yield made.given(reads)


def examples_at(examples: Examples, rows_B: Tensor) -> Stored:
    """Some examples, by row numbers on the CPU; what was encoded is on the CPU, too.

    Raises:
        DataError: an image cannot be decoded.
    """
    if isinstance(examples, EncodedImages):
        return examples.rows(rows_B)
    first = examples if isinstance(examples, Tensor) else next(iter(examples.values()))
    return rows_of(examples, rows_B.to(first.device))


class _Making:
    def __init__(
        self, task: LearnerTask, examples: Examples, targets_N: Tensor, device: torch.device
    ) -> None:
        self._task = task
        self._examples = examples
        self._targets_N = targets_N
        self._device = device
        self._on_cpu = device.type == "cpu"

    def reading(self) -> AbstractContextManager[Iterator[_Read]]:
        """Minibatches as they are read, ahead where that takes the time of a core."""
        if isinstance(self._examples, EncodedImages) or (self._on_cpu and self._augments):
            return reading_ahead(self._read, self._parts())
        return nullcontext(map(self._read, self._parts()))

    def given(self, reads: Iterator[_Read]) -> Iterator[Minibatch]:
        """Minibatches as training takes them."""
        asked = perf_counter()
        for read in reads:
            times = BatchTimes(*read.times, asked=asked, taken=perf_counter())
            rows_B, examples_B = read.part.rows_B, read.examples_B
            if not self._on_cpu:
                there_B = stored_on(examples_B, self._device, non_blocking=True)
                examples_B = augment(there_B, self._task.augmentation, read.part.draws)
            yield Minibatch(examples_B, self._targets_N[rows_B.to(self._device)], times)
            asked = perf_counter()

    @property
    def _augments(self) -> bool:
        images = isinstance(self._examples, Tensor)
        return images and self._task.augmentation.method is not AugmentationMethod.NONE

    def _parts(self) -> Iterator[_Part]:
        task, number = self._task, len(self._targets_N)
        for step in range(task.learners.num_steps):
            order = derive_generator(task.seed, "learner-order", step)
            draws = derive_generator(task.seed, "learner-augmentation", step)
            order_N = torch.randperm(number, generator=order)
            for rows_B in torch.split(order_N, task.learners.batch_size):
                yield _Part(rows_B, draws)

    def _read(self, part: _Part) -> _Read:
        began = perf_counter()
        examples_B = examples_at(self._examples, part.rows_B)
        there = perf_counter()
        if self._on_cpu:
            examples_B = augment(examples_B, self._task.augmentation, part.draws)
        elif isinstance(self._examples, EncodedImages):
            examples_B = pinned(examples_B)
        return _Read(part, examples_B, (began, there, perf_counter()))
