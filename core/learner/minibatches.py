"""Minibatches: a learner's examples in the order of its passes, ready before it is their turn.

A thread decodes and augments while the model trains on the minibatch before. It makes one after
the other, so that generators draw as without it, and a learner is the same to the bit. An
accelerator augments in its own queue; the thread decodes for it, into pinned memory.

Shapes: N examples of the shard, B of a minibatch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
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
class Minibatch:
    """Augmented examples and their targets, on the device; and for how long training waited."""

    examples_B: Stored
    targets_B: Tensor
    waited_seconds: float


@dataclass(frozen=True)
class _Part:
    rows_B: Tensor
    draws: torch.Generator


@contextmanager
def minibatches(
    task: LearnerTask, examples: Examples, targets_N: Tensor, device: torch.device
) -> Iterator[Iterator[Minibatch]]:
    """Those of all passes, one pass after another; the thread ends with the context."""
    on_cpu, encoded = device.type == "cpu", isinstance(examples, EncodedImages)
    augments = (
        isinstance(examples, Tensor) and task.augmentation.method is not AugmentationMethod.NONE
    )

    def read(part: _Part) -> tuple[_Part, Stored]:
        examples_B = examples_at(examples, part.rows_B)
        if on_cpu:
            examples_B = augment(examples_B, task.augmentation, part.draws)
        elif encoded:
            examples_B = pinned(examples_B)
        return part, examples_B

    def ready(reads: Iterator[tuple[_Part, Stored]]) -> Iterator[Minibatch]:
        asked = perf_counter()
        for part, examples_B in reads:
            waited = perf_counter() - asked
            if not on_cpu:
                there_B = stored_on(examples_B, device, non_blocking=True)
                examples_B = augment(there_B, task.augmentation, part.draws)  # noqa: PLW2901
            yield Minibatch(examples_B, targets_N[part.rows_B.to(device)], waited)
            asked = perf_counter()

    parts = _parts(task, len(targets_N))
    ahead = encoded or (on_cpu and augments)
    with reading_ahead(read, parts) if ahead else nullcontext(map(read, parts)) as reads:
        yield ready(reads)


def _parts(task: LearnerTask, num_examples: int) -> Iterator[_Part]:
    for step in range(task.learners.num_steps):
        order = derive_generator(task.seed, "learner-order", step)
        draws = derive_generator(task.seed, "learner-augmentation", step)
        order_N = torch.randperm(num_examples, generator=order)
        for rows_B in torch.split(order_N, task.learners.batch_size):
            yield _Part(rows_B, draws)


def examples_at(examples: Examples, rows_B: Tensor) -> Stored:
    """Some examples, by row numbers on the CPU; what was encoded is on the CPU, too."""
    if isinstance(examples, EncodedImages):
        return examples.rows(rows_B)
    first = examples if isinstance(examples, Tensor) else next(iter(examples.values()))
    return rows_of(examples, rows_B.to(first.device))
