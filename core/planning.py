"""Costs of a computation before it runs, as sums of parts, and their limits.

Each part grows with one setting, so a violation names the setting and its largest valid value.

A learner's memory is planned for float32 on a CPU. For five kinds of networks, training takes 0.85
to 1.0 times the plan (MobileNet 1.8 times). Evaluation takes 1.0 to 1.4 times the plan.
"""

from __future__ import annotations

from dataclasses import dataclass

from lipt.common.config.run_config import LearnersConfig
from lipt.common.text import format_bytes
from lipt.models.footprint import ModelFigures

# An interpreter with torch.
PROCESS_BYTES = 2**30
# A thread's stack and library buffers.
THREAD_BYTES = 2**23
# theta*, the model, its gradient, its momentum, and an update or the result.
MODEL_COPIES = 5
# Frozen layers lack the last three.
_TRAINED_COPIES = 3
# Bytes for each stored image byte in a batch: uint8 before and after augmentation, and float32.
INPUT_BYTES = 6
# Prefetched batches: one ready, and one in augmentation.
_AHEAD_BYTES = 3
# A step on fewer images takes as long.
STEP_IMAGES = 64
# A shard's file and its examples.
_SHARD_COPIES = 2


@dataclass(frozen=True)
class Part:
    """The cost of one setting's value: `value` times `each`.

    `knob` is the dotted setting, empty for a fixed cost. `lowest` is its smallest value, None for
    no number. `name` replaces `value` in messages.
    """

    knob: str
    value: int
    each: int
    what: str
    lowest: int | None = 1
    name: str = ""

    @property
    def cost(self) -> int:
        return self.value * self.each


@dataclass(frozen=True)
class PlannedCost:
    """A total cost in "bytes", "threads" or "images"; `where` is a noun: "memory of a worker"."""

    where: str
    unit: str
    parts: tuple[Part, ...]

    @property
    def total(self) -> int:
        return sum(part.cost for part in self.parts)

    def written(self, amount: int) -> str:
        return format_bytes(amount) if self.unit == "bytes" else f"{amount} {self.unit}"


@dataclass(frozen=True)
class Limit:
    """A limit; `remedy` is a clause that replaces "raise NAME"."""

    name: str
    at_most: int
    remedy: str = ""


@dataclass(frozen=True)
class Violation:
    """A cost's ratio to its exceeded limit, and the setting with its largest part."""

    knob: str
    limit: Limit
    times: float
    sentence: str


def violation(cost: PlannedCost, limit: Limit) -> Violation | None:
    if cost.total <= limit.at_most:
        return None
    blamable = [part for part in cost.parts if part.knob and part.cost] or cost.parts
    part = max(blamable, key=lambda part: part.cost)
    written = cost.written
    value = part.name or str(part.value)
    blamed = f"{part.knob} = {value}: " if part.knob else ""
    most = f", {written(part.cost)} of it for {part.what}" if len(cost.parts) > 1 else ""
    return Violation(
        knob=part.knob,
        limit=limit,
        times=cost.total / max(limit.at_most, 1),
        sentence=(
            f"{blamed}{cost.where} comes to {written(cost.total)}{most}, over {limit.name} = "
            f"{written(limit.at_most)}. {_remedy(cost, part, limit)}"
        ),
    )


def _remedy(cost: PlannedCost, part: Part, limit: Limit) -> str:
    raising = limit.remedy or f"raise {limit.name}"
    left = limit.at_most - (cost.total - part.cost)
    fitting = left // part.each if part.each else 0
    if part.knob and part.lowest is not None and fitting >= part.lowest:
        return f"Lower {part.knob} to at most {fitting}, or {raising}."
    knobs = dict.fromkeys(item.knob for item in (part, *cost.parts) if item.knob and item.cost)
    changes = [f"a smaller {knob}" if knob == "model" else f"a lower {knob}" for knob in knobs]
    return f"Choose {', '.join(changes)}, or {raising}." if changes else f"{raising.capitalize()}."


def training_bytes_per_example(figures: ModelFigures, example_bytes: int) -> int:
    return figures.training_bytes + INPUT_BYTES * example_bytes


def learner_threads(learners: LearnersConfig) -> PlannedCost:
    part = Part("learners.cpu_threads", learners.cpu_threads, 1, "training")
    return PlannedCost("training of a learner", "threads", (part,))


def learner_images(learners: LearnersConfig) -> PlannedCost:
    each = learners.num_minibatches * max(learners.batch_size, STEP_IMAGES) * learners.max_attempts
    part = Part("learners.num_steps", learners.num_steps, each, "its steps, in every attempt")
    return PlannedCost("training of a learner", "images", (part,))


def learner_memory(
    learners: LearnersConfig, model: str, figures: ModelFigures, *, example_bytes: int
) -> PlannedCost:
    sent = figures.sent_bytes
    copy = figures.weights_bytes - figures.frozen_bytes * _TRAINED_COPIES // MODEL_COPIES
    shard = learners.num_minibatches, learners.batch_size * example_bytes * _SHARD_COPIES
    return PlannedCost(
        "memory of a worker",
        "bytes",
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
