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
from typing import NamedTuple, Self

from lipt.common.config.run_config import AugmentationMethod, LearnersConfig, RunConfig, SoupMethod
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


Parts = tuple[Part, ...]


@dataclass(frozen=True)
class PlannedCost:
    """A cost in "bytes", "threads" or "images" of `where`, a noun; `limited` is of [limits]."""

    limited: str
    unit: str
    where: str
    parts: Parts

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


def excesses(costs: Iterable[PlannedCost], limits: Mapping[str, Limit]) -> tuple[str, ...]:
    """A sentence for each setting whose part is the largest of a cost over its limit.

    Of several such costs the one that is the most times its limit is named.
    """
    worst: dict[str, tuple[float, str]] = {}
    for cost in costs:
        limit = limits.get(cost.limited)
        if limit is not None and cost.total > limit.at_most:
            blamable = [part for part in cost.parts if part.knob and part.cost] or cost.parts
            part = max(blamable, key=lambda part: part.cost)
            times = cost.total / max(limit.at_most, 1)
            if times > worst.get(part.knob, (0.0, ""))[0]:
                worst[part.knob] = times, _sentence(cost, part, limit)
    return tuple(sentence for _, sentence in worst.values())


def _sentence(cost: PlannedCost, part: Part, limit: Limit) -> str:
    written, raising = cost.written, limit.remedy or f"raise {limit.name}"
    blamed = f"{part.knob} = {part.name or part.value}: " if part.knob else ""
    most = f", {written(part.cost)} of it for {part.what}" if len(cost.parts) > 1 else ""
    left = limit.at_most - (cost.total - part.cost)
    fitting = left // part.each if part.each else 0
    knobs = dict.fromkeys(item.knob for item in (part, *cost.parts) if item.knob and item.cost)
    if part.knob and part.lowest is not None and fitting >= part.lowest:
        remedy = f"Lower {part.knob} to at most {fitting}, or {raising}."
    elif knobs:
        changes = [f"a smaller {knob}" if knob == "model" else f"a lower {knob}" for knob in knobs]
        remedy = f"Choose {', '.join(changes)}, or {raising}."
    else:
        remedy = f"{raising.capitalize()}."
    return (
        f"{blamed}{cost.where} comes to {written(cost.total)}{most}, over {limit.name} = "
        f"{written(limit.at_most)}. {remedy}"
    )


class StageCosts(NamedTuple):
    """The memory, threads and images of one task of a stage."""

    memory: PlannedCost
    threads: PlannedCost
    images: PlannedCost

    @classmethod
    def of(
        cls, stage: str, work: str, memory: Parts, threads: Parts = (), images: Parts = ()
    ) -> Self:
        """The costs of a stage in the compute process."""
        where = f"memory of the compute process for {stage}"
        return cls(
            PlannedCost("compute_memory", "bytes", where, memory),
            PlannedCost("compute_threads", "threads", work, threads),
            PlannedCost("compute_images", "images", work, images),
        )


class RunPlan(NamedTuple):
    """The costs of a run by stage and file; a learner's result takes `result_bytes` at most."""

    initialization: StageCosts
    shards: StageCosts
    learner: StageCosts
    soup: StageCosts
    files: tuple[PlannedCost, ...]
    result_bytes: int

    @property
    def costs(self) -> tuple[PlannedCost, ...]:
        return (*self.initialization, *self.shards, *self.learner, *self.soup, *self.files)


def resident_bytes(inputs: InputSpec, num_examples: int) -> int:
    """Bytes of the data in memory; 0 for a large image set."""
    if not isinstance(inputs, ImageSpec):
        return num_examples * inputs.num_bytes
    decoded = num_examples * _RGB * inputs.height * inputs.width
    return decoded if decoded <= MEMORY_BUDGET_BYTES else 0


def require_augmentation(config: RunConfig, inputs: InputSpec) -> None:
    method = config.augmentation.method
    if method is AugmentationMethod.CROP_FLIP and not isinstance(inputs, ImageSpec):
        raise ConfigError(
            f"augmentation.method is {method}, which is of images; the data has {inputs}. Leave "
            "it out: such examples are not augmented."
        )


def plan_run(
    config: RunConfig,
    figures: ModelFigures,
    inputs: InputSpec,
    class_counts: Sequence[int],
    *,
    evaluation_batch_size: int,
) -> RunPlan:
    """Plan a run; `evaluation_batch_size` is in images per forward pass on the coordinator."""
    initial, learners, soup = config.initialization, config.learners, config.soup
    size, num_examples, name = inputs.num_bytes, sum(class_counts), config.model
    held_out = num_validation_examples(class_counts, config.validation)
    num_train = num_examples - held_out
    weights, minibatch = figures.weights_bytes, size * learners.batch_size
    sent = figures.sent_bytes + figures.sent_bytes // _MASK_SHARE
    num_steps, num_learners = num_initialization_steps(initial, num_train), learners.num_learners
    cores = max(config.evaluation_threads, learners.cpu_threads)
    always = (
        Part("", 1, PROCESS_BYTES, "the process"),
        Part("", 1, resident_bytes(inputs, num_examples), "the data"),
        Part("evaluation_threads", cores, THREAD_BYTES, "threads"),
        Part("model", MODEL_COPIES, weights, "copies of the weights", None, name),
    )

    # A batch never exceeds the training split.
    batch = min(initial.batch_size, num_train)
    in_training, written = batch * bool(num_steps), str(initial.batch_size)
    each, step = figures.training_bytes + INPUT_BYTES * size, max(batch, STEP_IMAGES)
    knob = "initialization.batch_size"
    activations = Part(knob, in_training, each, "a step's activations", 1, written)
    steps = Part("initialization.steps", num_steps, step, "its steps", 0)
    if initial.steps is None:
        epochs = f"{initial.epochs:g}"
        steps = Part("initialization.epochs", num_steps, step, "its epochs", None, epochs)
    threads = Part("learners.cpu_threads", learners.cpu_threads, bool(num_steps), "training")

    number, each = learners.num_minibatches, minibatch * _COMPUTE_SHARDS
    shard = Part("learners.num_minibatches", number, each, "a shard")

    split, norm = f"{config.validation.fraction:g}", str(soup.batch_norm_examples)
    num_batch_norm = min(soup.batch_norm_examples, num_train) * soup.reestimate_batch_norm
    each = evaluation_batch_size * (figures.evaluation_bytes + INPUT_BYTES * size) + weights
    together = num_evaluated_together(config)
    # Learners and their differences from theta*.
    whole = 2 * weights * (soup.method is SoupMethod.SIMPLEX)
    scored: Parts = (
        Part("learners.num_learners", num_learners, whole, "learners that are merged at once"),
        Part("validation.fraction", held_out, size, "the validation split", None, split),
        Part("soup.batch_norm_examples", num_batch_norm, size, "examples for batch norms", 1, norm),
        # A GPU scores one model at a time; its memory is not counted.
        Part("evaluation_threads", together, each, "batches and models that are scored at a time"),
    )
    each = held_out + num_batch_norm
    alone = Part("learners.num_learners", num_learners, each, "learners on their own")
    knob, ratios, mixed = {
        SoupMethod.GREEDY: ("", 1, num_learners - 1),
        SoupMethod.INTERPOLATION: ("soup.num_alphas", soup.num_alphas, num_learners - 1),
        SoupMethod.SIMPLEX: ("", NUM_ROUNDS, num_learners + 1),
    }.get(soup.method, ("", 0, 0))
    mixtures = Part(knob, ratios, each * mixed, "mixtures of learners")
    scorers = Part("evaluation_threads", config.evaluation_threads, 1, "evaluation")

    files = number * minibatch + sent
    snapshots, all_sent = learners.num_snapshots, num_learners * sent
    disk = (
        Part("model", 2, weights, "theta* and theta_p", None, name),
        Part("learners.num_learners", num_learners, files, "shards and results"),
        Part("learners.num_snapshots", snapshots, all_sent, "snapshots", 0),
    )
    theta_file = Part("model", 1, weights, "its weights", None, name)
    shard_file = Part("learners.num_minibatches", number, minibatch, "its examples")
    trained, scored = (*always, activations), (*always, *scored)
    return RunPlan(
        StageCosts.of("theta*", "training of theta*", trained, (threads,), (steps,)),
        StageCosts.of("the shards", "cutting of shards", (*always, shard)),
        plan_learner(learners, name, figures, example_bytes=size),
        StageCosts.of("the soup", "evaluation for the soup", scored, (scorers,), (alone, mixtures)),
        (
            PlannedCost("run_disk", "bytes", "the run's files", disk),
            PlannedCost("max_blob_bytes", "bytes", "a file of weights", (theta_file,)),
            PlannedCost("max_blob_bytes", "bytes", "a shard's file", (shard_file,)),
        ),
        sent,
    )


def plan_learner(
    learners: LearnersConfig, model: str, figures: ModelFigures, *, example_bytes: int
) -> StageCosts:
    """The costs of a learner on a worker; its images are those of every attempt."""
    copy = figures.weights_bytes - figures.frozen_bytes * _TRAINED_COPIES // MODEL_COPIES
    number, batch, threads = learners.num_minibatches, learners.batch_size, learners.cpu_threads
    each = (figures.training_bytes + INPUT_BYTES * example_bytes) // learners.accumulation_steps
    each += _AHEAD_BYTES * example_bytes
    shard, sent = batch * example_bytes * _WORKER_SHARDS, figures.sent_bytes
    memory = (
        Part("", 1, PROCESS_BYTES, "its process"),
        Part("model", MODEL_COPIES, copy, "copies of the weights", None, model),
        Part("learners.batch_size", batch, each, "the activations of a minibatch"),
        Part("learners.num_minibatches", number, shard, "the shard"),
        Part("learners.num_snapshots", learners.num_snapshots, sent, "snapshots", 0),
        Part("learners.cpu_threads", threads, THREAD_BYTES, "threads"),
    )
    each = number * max(batch, STEP_IMAGES) * learners.max_attempts
    steps = Part("learners.num_steps", learners.num_steps, each, "its steps, in every attempt")
    training, work = Part("learners.cpu_threads", threads, 1, "training"), "training of a learner"
    return StageCosts(
        PlannedCost("worker_memory", "bytes", "memory of a worker", memory),
        PlannedCost("worker_threads", "threads", work, (training,)),
        PlannedCost("worker_images", "images", work, (steps,)),
    )
