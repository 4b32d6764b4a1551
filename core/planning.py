"""Costs of a run before it runs: threads, memory, images and files, and their limits.

Each cost is a sum of parts. A part grows with one setting, so a cost over its limit names the
setting and its largest valid value. A run's costs are listed by stage; later selections are not
included.

Memory is planned for float32 on a CPU. For five kinds of networks, training takes 0.85 to 1.0 times
the plan (MobileNet 1.8 times). Evaluation takes 1.0 to 1.4 times the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from lipt.common.config.run_config import AugmentationMethod, RunConfig, SoupMethod
from lipt.common.errors import ConfigError
from lipt.common.text import format_bytes
from lipt.core.pretraining.evaluation import num_evaluated_together
from lipt.core.pretraining.initialization import num_initialization_steps
from lipt.core.pretraining.merged import NUM_ROUNDS
from lipt.core.pretraining.sharding import num_validation_examples
from lipt.data.inputs.specs import ImageSpec, InputSpec
from lipt.data.loading import MEMORY_BUDGET_BYTES
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
# Copies of a shard in memory: its file, its examples, and on the coordinator the file's parts.
_WORKER_SHARDS, _COMPUTE_SHARDS = 2, 3
# Channels of an image while it is read.
_RGB = 3
# A mask bit per float32 value.
_MASK_SHARE = 32


@dataclass(frozen=True)
class Part:
    """A part of a cost: `count` times `each`, for `what`.

    knob, value: the dotted setting that it grows with, and what it is set to; none of a fixed cost.
    """

    what: str
    count: int
    each: int = 1
    knob: str = ""
    value: object = None

    @property
    def cost(self) -> int:
        return self.count * self.each


Parts = Sequence[Part]


def part_of(
    config: RunConfig, knob: str, what: str, each: int = 1, *, count: int | None = None
) -> Part:
    """The part of a setting of a run; `count` in place of the value where they differ."""
    value: Any = attrgetter(knob)(config)
    return Part(what, value if count is None else count, each, knob, value)


def total(parts: Parts) -> int:
    return sum(part.cost for part in parts)


class PlannedCost(NamedTuple):
    """A cost in "bytes", "threads" or "images" of `where`, a noun; `limited` is of [limits]."""

    limited: str
    unit: str
    where: str
    parts: Parts

    def written(self, amount: int) -> str:
        return format_bytes(amount) if self.unit == "bytes" else f"{amount} {self.unit}"


@dataclass(frozen=True)
class Stage:
    """The memory, threads and images of one task of a stage.

    process: "compute" or "worker", each with its limits. work: for messages, a noun. verb: what
    happens to the images.
    """

    name: str
    process: str
    work: str
    verb: str
    memory: Parts
    threads: Parts = ()
    images: Parts = ()

    @property
    def costs(self) -> tuple[PlannedCost, ...]:
        of = "a worker" if self.process == "worker" else f"the compute process for {self.work}"
        return (
            PlannedCost(f"{self.process}_memory", "bytes", f"memory of {of}", self.memory),
            PlannedCost(f"{self.process}_threads", "threads", self.work, self.threads),
            PlannedCost(f"{self.process}_images", "images", self.work, self.images),
        )


class RunPlan(NamedTuple):
    """The costs of a run by stage and file; a learner's result takes `result_bytes` at most."""

    stages: tuple[Stage, ...]
    files: tuple[PlannedCost, ...]
    result_bytes: int

    @property
    def costs(self) -> tuple[PlannedCost, ...]:
        return (*(cost for stage in self.stages for cost in stage.costs), *self.files)


class Limit(NamedTuple):
    """A limit, and its name as users know it."""

    name: str
    at_most: int


def excesses(costs: Iterable[PlannedCost], limits: Mapping[str, Limit]) -> tuple[str, ...]:
    """A sentence for each setting whose part is the largest of a cost over its limit.

    Of several such costs the one that is the most times its limit is named.
    """
    worst: dict[str, tuple[float, str]] = {}
    for cost in costs:
        limit = limits.get(cost.limited)
        if limit is not None and total(cost.parts) > limit.at_most:
            part = max(cost.parts, key=lambda part: (bool(part.knob and part.cost), part.cost))
            times = total(cost.parts) / max(limit.at_most, 1)
            if times > worst.get(part.knob, (0.0, ""))[0]:
                worst[part.knob] = times, _sentence(cost, part, limit)
    return tuple(sentence for _, sentence in worst.values())


def _sentence(cost: PlannedCost, part: Part, limit: Limit) -> str:
    written, raising = cost.written, f"raise {limit.name}"
    blamed = f"{part.knob} = {part.value}: " if part.knob else ""
    most = f", {written(part.cost)} of it for {part.what}" if len(cost.parts) > 1 else ""
    besides = total(cost.parts) - part.cost
    fitting = (limit.at_most - besides) // part.each if part.each else 0
    knobs = dict.fromkeys(item.knob for item in (part, *cost.parts) if item.knob and item.cost)
    if isinstance(part.value, int) and fitting > 0:
        remedy = f"Lower {part.knob} to at most {fitting}, or {raising}."
    elif knobs:
        changes = [f"a {'smaller' if knob == 'model' else 'lower'} {knob}" for knob in knobs]
        remedy = f"Choose {', '.join(changes)}, or {raising}."
    else:
        remedy = f"{raising.capitalize()}."
    return (
        f"{blamed}{cost.where} comes to {written(total(cost.parts))}{most}, over {limit.name} = "
        f"{written(limit.at_most)}. {remedy}"
    )


def resident_bytes(inputs: InputSpec, num_examples: int) -> int:
    """Bytes of the data in memory; 0 for a large image set."""
    if not isinstance(inputs, ImageSpec):
        return num_examples * inputs.num_bytes
    decoded = num_examples * _RGB * inputs.height * inputs.width
    return decoded if decoded <= MEMORY_BUDGET_BYTES else 0


def plan_run(
    config: RunConfig,
    figures: ModelFigures,
    inputs: InputSpec,
    class_counts: Sequence[int],
    *,
    evaluation_batch_size: int,
) -> RunPlan:
    """Plan a run; `evaluation_batch_size` is in images per forward pass on the coordinator.

    ConfigError if the data does not allow it.
    """
    initial, learners, soup = config.initialization, config.learners, config.soup
    method, of = config.augmentation.method, partial(part_of, config)
    if method is AugmentationMethod.CROP_FLIP and not isinstance(inputs, ImageSpec):
        raise ConfigError(
            f"augmentation.method is {method}, which is of images; the data has {inputs}. Leave "
            "it out: such examples are not augmented."
        )
    size, weights = inputs.num_bytes, figures.weights_bytes
    sent = figures.sent_bytes + figures.sent_bytes // _MASK_SHARE
    held_out = num_validation_examples(class_counts, config.validation)
    num_train, num_learners = sum(class_counts) - held_out, learners.num_learners
    cores = max(config.evaluation_threads, learners.cpu_threads)
    always = (
        Part("the process", PROCESS_BYTES),
        Part("the data", resident_bytes(inputs, sum(class_counts))),
        of("evaluation_threads", "threads", THREAD_BYTES, count=cores),
        of("model", "copies of the weights", weights, count=MODEL_COPIES),
    )

    # A batch never exceeds the training split.
    batch = min(initial.batch_size, num_train)
    num_steps = num_initialization_steps(initial, num_train)
    each = (figures.training_bytes + INPUT_BYTES * size) * bool(num_steps)
    activations = of("initialization.batch_size", "a step's activations", each, count=batch)
    length, step = "epochs" if initial.steps is None else "steps", max(batch, STEP_IMAGES)
    theta = Stage(
        *("theta*", "compute", "training of theta*", "trained"),
        memory=(*always, activations),
        threads=[of("learners.cpu_threads", "training", int(num_steps > 0))],
        images=[of(f"initialization.{length}", f"its {length}", step, count=num_steps)],
    )
    minibatch = size * learners.batch_size
    shard = of("learners.num_minibatches", "a shard", minibatch * _COMPUTE_SHARDS)
    shards = Stage("shards", "compute", "cutting of shards", "", (*always, shard))

    num_norm = min(soup.batch_norm_examples, num_train) * soup.reestimate_batch_norm
    each = evaluation_batch_size * (figures.evaluation_bytes + INPUT_BYTES * size) + weights
    together = num_evaluated_together(config)
    # Learners and their differences from theta*.
    whole = 2 * weights * (soup.method is SoupMethod.SIMPLEX)
    per_model, what, num_others = held_out + num_norm, "mixtures of learners", num_learners - 1
    mixtures = {
        SoupMethod.GREEDY: [Part(what, num_others, per_model)],
        SoupMethod.INTERPOLATION: [of("soup.num_alphas", what, num_others * per_model)],
        SoupMethod.SIMPLEX: [Part(what, NUM_ROUNDS * (num_learners + 1), per_model)],
    }.get(soup.method, [])
    merging = Stage(
        *("soup", "compute", "evaluation for the soup", "evaluated"),
        memory=(
            *always,
            of("learners.num_learners", "learners that are merged at once", whole),
            of("validation.fraction", "the validation split", size, count=held_out),
            of("soup.batch_norm_examples", "examples for batch norms", size, count=num_norm),
            # A GPU scores one model at a time; its memory is not counted.
            of("evaluation_threads", "batches and models scored at a time", each, count=together),
        ),
        threads=[of("evaluation_threads", "evaluation")],
        images=[of("learners.num_learners", "learners on their own", per_model), *mixtures],
    )
    shard_file = of("learners.num_minibatches", "its examples", minibatch)
    disk = (
        of("model", "theta* and theta_p", weights, count=2),
        of("learners.num_learners", "shards and results", shard_file.cost + sent),
        of("learners.num_snapshots", "snapshots", num_learners * sent),
    )
    theta_file = of("model", "its weights", weights, count=1)
    return RunPlan(
        (theta, shards, plan_learner(config, figures, example_bytes=size), merging),
        (
            PlannedCost("run_disk", "bytes", "the run's files", disk),
            PlannedCost("max_blob_bytes", "bytes", "a file of weights", [theta_file]),
            PlannedCost("max_blob_bytes", "bytes", "a shard's file", [shard_file]),
        ),
        sent,
    )


def plan_learner(config: RunConfig, figures: ModelFigures, *, example_bytes: int) -> Stage:
    """The costs of a learner on a worker; its images are those of every attempt."""
    learners, of = config.learners, partial(part_of, config)
    copy = figures.weights_bytes - figures.frozen_bytes * _TRAINED_COPIES // MODEL_COPIES
    each = (figures.training_bytes + INPUT_BYTES * example_bytes) // learners.accumulation_steps
    each += _AHEAD_BYTES * example_bytes
    shard = learners.batch_size * example_bytes * _WORKER_SHARDS
    step = learners.num_minibatches * max(learners.batch_size, STEP_IMAGES) * learners.max_attempts
    return Stage(
        *("learners", "worker", "training of a learner", "trained"),
        memory=(
            Part("its process", PROCESS_BYTES),
            of("model", "copies of the weights", copy, count=MODEL_COPIES),
            of("learners.batch_size", "the activations of a minibatch", each),
            of("learners.num_minibatches", "the shard", shard),
            of("learners.num_snapshots", "snapshots", figures.sent_bytes),
            of("learners.cpu_threads", "threads", THREAD_BYTES),
        ),
        threads=[of("learners.cpu_threads", "training")],
        images=[of("learners.num_steps", "its steps, in every attempt", step)],
    )
