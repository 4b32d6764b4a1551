"""Costs of a computation before it runs, as sums of parts, and their limits.

Each part grows with one setting, so a violation names the setting and its largest fitting value.

Memory of a learner is what a CPU takes in float32, main memory and a device's own together.
Measured on networks of five kinds, a batch takes 0.85 to 1.0 times what is planned in training,
MobileNet 1.8 times; in evaluation 1.0 to 1.4 times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from lipt.common.config.run_config import LearnersConfig
from lipt.common.models.footprint import ModelFigures
from lipt.common.text import format_bytes

# An interpreter with torch and its libraries.
PROCESS_BYTES = 2**30
# A thread's stack, and what a library keeps for each.
THREAD_BYTES = 2**23
# theta*, the model, its gradient, its momentum, and one in the making: an update, or the result.
MODEL_COPIES = 5
# Of these the last three are of what is trained alone.
_TRAINED_COPIES = 3
# Of a batch, for each byte of a stored example: of images uint8 before and after augmentation, and
# float32 as they are normalized; columns take less. What the model makes of them is among its
# figures.
INPUT_BYTES = 6
# Likewise, of what is made ahead while a learner is trained on a batch, whose uint8 is there only
# once by then: one batch that is ready, and one that augmentation has three times.
_AHEAD_BYTES = 3
# A step on fewer images takes no less time.
STEP_IMAGES = 64
# A shard's file, and its examples.
_SHARD_COPIES = 2


class Unit(Enum):
    """What is counted, and how it is written."""

    BYTES = (format_bytes,)
    THREADS = ("{} threads".format,)
    IMAGES = ("{} images".format,)

    def __init__(self, written: Callable[[int], str]) -> None:
        self.written = written


@dataclass(frozen=True)
class Part:
    """What one setting's value costs.

    knob: the setting, dotted; empty for a fixed cost.
    value: the count; `each` is the cost of one.
    lowest: the smallest value of the setting; None where it is no number.
    name: the setting's value where that is not `value`.
    """

    knob: str
    value: int
    each: int
    what: str
    lowest: int | None = 1
    name: str = ""

    @property
    def cost(self) -> int:
        """`value` times `each`."""
        return self.value * self.each


@dataclass(frozen=True)
class Cost:
    """What is taken in one place; `where` is a noun, as "memory of a worker"."""

    where: str
    unit: Unit
    parts: tuple[Part, ...]

    @property
    def total(self) -> int:
        """What all parts come to."""
        return sum(part.cost for part in self.parts)


@dataclass(frozen=True)
class Limit:
    """The most that may be taken; `remedy` is a clause in place of "raise NAME"."""

    name: str
    at_most: int
    remedy: str = ""


@dataclass(frozen=True)
class Violation:
    """A cost over its limit, and the setting with the largest part of it."""

    knob: str
    value: str
    cost: int
    limit: Limit
    sentence: str

    @property
    def times(self) -> float:
        """How many times the limit it is."""
        return self.cost / max(self.limit.at_most, 1)

    def __str__(self) -> str:
        return self.sentence


def violation(cost: Cost, limit: Limit) -> Violation | None:
    """What is wrong with a cost under a limit, if anything is."""
    if cost.total <= limit.at_most:
        return None
    blamable = [part for part in cost.parts if part.knob and part.cost] or cost.parts
    part = max(blamable, key=lambda part: part.cost)
    written = cost.unit.written
    value = part.name or str(part.value)
    blamed = f"{part.knob} = {value}: " if part.knob else ""
    most = f", {written(part.cost)} of it for {part.what}" if len(cost.parts) > 1 else ""
    return Violation(
        knob=part.knob,
        value=value,
        cost=cost.total,
        limit=limit,
        sentence=(
            f"{blamed}{cost.where} comes to {written(cost.total)}{most}, over {limit.name} = "
            f"{written(limit.at_most)}. {_remedy(cost, part, limit)}"
        ),
    )


def _remedy(cost: Cost, part: Part, limit: Limit) -> str:
    raising = limit.remedy or f"raise {limit.name}"
    left = limit.at_most - (cost.total - part.cost)
    fitting = left // part.each if part.each else 0
    if part.knob and part.lowest is not None and fitting >= part.lowest:
        return f"Lower {part.knob} to at most {fitting}, or {raising}."
    knobs = dict.fromkeys(item.knob for item in (part, *cost.parts) if item.knob and item.cost)
    changes = [f"a smaller {knob}" if knob == "model" else f"a lower {knob}" for knob in knobs]
    return f"Choose {', '.join(changes)}, or {raising}." if changes else f"{raising.capitalize()}."


def training_bytes_per_example(figures: ModelFigures, example_bytes: int) -> int:
    """What an example of a batch takes while a model is trained on it, by its stored bytes."""
    return figures.training_bytes + INPUT_BYTES * example_bytes


def learner_threads(learners: LearnersConfig) -> Cost:
    """Threads of a worker."""
    part = Part("learners.cpu_threads", learners.cpu_threads, 1, "training")
    return Cost("training of a learner", Unit.THREADS, (part,))


def learner_images(learners: LearnersConfig) -> Cost:
    """Images that a learner puts through its model, should it take all of its attempts."""
    each = learners.num_minibatches * max(learners.batch_size, STEP_IMAGES) * learners.max_attempts
    part = Part("learners.num_steps", learners.num_steps, each, "its steps, in every attempt")
    return Cost("training of a learner", Unit.IMAGES, (part,))


def learner_memory(
    learners: LearnersConfig, model: str, figures: ModelFigures, *, example_bytes: int
) -> Cost:
    """Memory of a worker while it trains a learner."""
    sent = figures.sent_bytes
    # In the mean.
    copy = figures.weights_bytes - figures.frozen_bytes * _TRAINED_COPIES // MODEL_COPIES
    shard = learners.num_minibatches, learners.batch_size * example_bytes * _SHARD_COPIES
    return Cost(
        "memory of a worker",
        Unit.BYTES,
        (
            Part("", 1, PROCESS_BYTES, "its process"),
            Part("model", MODEL_COPIES, copy, "copies of the weights", None, model),
            Part(
                "learners.batch_size",
                learners.batch_size,
                training_bytes_per_example(figures, example_bytes) + _AHEAD_BYTES * example_bytes,
                "the activations of a minibatch",
            ),
            Part("learners.num_minibatches", *shard, "the shard"),
            Part("learners.num_snapshots", learners.num_snapshots, sent, "snapshots", 0),
            Part("learners.cpu_threads", learners.cpu_threads, THREAD_BYTES, "threads"),
        ),
    )
