"""Run plan: threads, memory, images and disk that a run will take, by place; a pure function.

Subsets of the run are not in it: they are asked for later, and depend on the strategy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch

from lipt.common.config.run_config import RunConfig, SoupMethod
from lipt.common.data import Dataset
from lipt.common.data.loading import MEMORY_BUDGET_BYTES
from lipt.common.inputs.specs import ImageSpec, InputSpec
from lipt.common.models.footprint import ModelFigures
from lipt.common.planning import (
    INPUT_BYTES,
    MODEL_COPIES,
    PROCESS_BYTES,
    STEP_IMAGES,
    THREAD_BYTES,
    Cost,
    Part,
    Unit,
    learner_images,
    learner_memory,
    learner_threads,
    training_bytes_per_example,
)
from lipt.common.targets.values import OtherTarget, SingleLabel, Target
from lipt.core.evaluation import num_evaluated_together
from lipt.core.sharding import num_validation_examples
from lipt.core.training import num_initialization_steps

# A shard's examples, the file's parts, and the file.
_SHARD_COPIES = 3
# Channels of an image while it is read.
_RGB = 3
# A mask of a bit per float32 value.
_MASK_SHARE = 32


@dataclass(frozen=True)
class DataFigures:
    """Examples per class, or per stratum of another target, and their inputs."""

    class_counts: Sequence[int]
    inputs: InputSpec
    other_target: OtherTarget | None = None

    @classmethod
    def of(cls, dataset: Dataset) -> Self:
        """Of an open data set."""
        targets = dataset.rows.targets
        counts_C = torch.bincount(dataset.labels_N, minlength=len(dataset.class_names))
        other_target = None if targets is None else targets.target
        return cls(tuple(counts_C.tolist()), dataset.inputs, other_target)

    @property
    def target(self) -> Target:
        """The models' target."""
        return self.other_target or SingleLabel(len(self.class_counts))

    @property
    def num_examples(self) -> int:
        """N."""
        return sum(self.class_counts)

    @property
    def example_bytes(self) -> int:
        """Bytes of a stored example."""
        return self.inputs.num_bytes

    @property
    def resident_bytes(self) -> int:
        """Bytes that stay in memory; none of a large set of images."""
        if not isinstance(self.inputs, ImageSpec):
            return self.num_examples * self.example_bytes
        decoded = self.num_examples * _RGB * self.inputs.height * self.inputs.width
        return decoded if decoded <= MEMORY_BUDGET_BYTES else 0


@dataclass(frozen=True)
class RunPlan:
    """The costs of a run by place; each has to fit on its own.

    Attributes:
        worker_threads, worker_memory, worker_images: of a worker, for one learner.
        compute_threads, compute_memory, compute_images: of the compute process, by stage.
        run_disk: of the state directory.
        max_blob_bytes: of single files, in the state directory and on the wire.
    """

    worker_threads: tuple[Cost, ...]
    worker_memory: tuple[Cost, ...]
    worker_images: tuple[Cost, ...]
    compute_threads: tuple[Cost, ...]
    compute_memory: tuple[Cost, ...]
    compute_images: tuple[Cost, ...]
    run_disk: tuple[Cost, ...]
    max_blob_bytes: tuple[Cost, ...]


def plan_run(
    config: RunConfig, figures: ModelFigures, data: DataFigures, *, evaluation_batch_size: int
) -> RunPlan:
    """Plan a run; `evaluation_batch_size` counts images per forward pass on the coordinator."""
    held_out = num_validation_examples(data.class_counts, config.validation)
    num_train = data.num_examples - held_out
    num_steps = num_initialization_steps(config.initialization, num_train)
    # Batches of more than the training split are the split.
    batch = min(config.initialization.batch_size, num_train)
    soup = config.soup
    num_batch_norm = min(soup.batch_norm_examples, num_train) * soup.reestimate_batch_norm
    learners = config.learners
    memory = learner_memory(learners, config.model, figures, example_bytes=data.example_bytes)
    return RunPlan(
        worker_threads=(learner_threads(learners),),
        worker_memory=(memory,),
        worker_images=(learner_images(learners),),
        compute_threads=_threads(config, num_steps),
        compute_memory=tuple(
            _memory(config, figures, data, stage, *parts)
            for stage, parts in {
                "theta*": (_initialization_part(config, figures, data, batch * bool(num_steps)),),
                "the shards": (_shard_part(config, data),),
                "the soup": _soup_parts(
                    config, figures, data, held_out, num_batch_norm, evaluation_batch_size
                ),
            }.items()
        ),
        compute_images=(
            _initialization_images(config, num_steps, max(batch, STEP_IMAGES)),
            _soup_images(config, held_out + num_batch_norm),
        ),
        run_disk=(_disk(config, figures, data),),
        max_blob_bytes=_files(config, figures, data),
    )


def result_bytes(figures: ModelFigures) -> int:
    """The most bytes of a learner's result: all of its weights, and a mask."""
    return figures.sent_bytes + figures.sent_bytes // _MASK_SHARE


def _threads(config: RunConfig, num_steps: int) -> tuple[Cost, ...]:
    evaluation = Part("evaluation_threads", config.evaluation_threads, 1, "evaluation")
    training = Part("learners.cpu_threads", config.learners.cpu_threads, 1, "theta*'s training")
    costs = (
        Cost("evaluation on the coordinator", Unit.THREADS, (evaluation,)),
        Cost("training of theta* on the coordinator", Unit.THREADS, (training,)),
    )
    return costs if num_steps else costs[:1]


def _memory(
    config: RunConfig, figures: ModelFigures, data: DataFigures, stage: str, *parts: Part
) -> Cost:
    threads = max(config.evaluation_threads, config.learners.cpu_threads)
    weights = figures.weights_bytes
    always = (
        Part("", 1, PROCESS_BYTES, "the process"),
        Part("", 1, data.resident_bytes, "the data"),
        Part("evaluation_threads", threads, THREAD_BYTES, "threads"),
        Part("model", MODEL_COPIES, weights, "copies of the weights", None, config.model),
    )
    return Cost(f"memory of the compute process for {stage}", Unit.BYTES, (*always, *parts))


def _initialization_part(
    config: RunConfig, figures: ModelFigures, data: DataFigures, images: int
) -> Part:
    each = training_bytes_per_example(figures, data.example_bytes)
    name = str(config.initialization.batch_size)
    return Part("initialization.batch_size", images, each, "a step's activations", name=name)


def _shard_part(config: RunConfig, data: DataFigures) -> Part:
    learners = config.learners
    each = learners.batch_size * data.example_bytes * _SHARD_COPIES
    return Part("learners.num_minibatches", learners.num_minibatches, each, "a shard")


def _soup_parts(
    config: RunConfig,
    figures: ModelFigures,
    data: DataFigures,
    held_out: int,
    num_batch_norm: int,
    batch_size: int,
) -> tuple[Part, ...]:
    each = data.example_bytes
    evaluated = figures.evaluation_bytes + INPUT_BYTES * each
    fraction, examples = f"{config.validation.fraction:g}", str(config.soup.batch_norm_examples)
    return (
        Part("validation.fraction", held_out, each, "the validation split", None, fraction),
        Part(
            "soup.batch_norm_examples",
            num_batch_norm,
            each,
            "examples for batch-norm statistics",
            name=examples,
        ),
        # A GPU scores one model at a time; its memory is not counted here.
        Part(
            "evaluation_threads",
            num_evaluated_together(config),
            batch_size * evaluated + figures.weights_bytes,
            "batches' activations and models that are scored at a time",
        ),
    )


def _initialization_images(config: RunConfig, num_steps: int, each: int) -> Cost:
    given = config.initialization
    if given.steps is None:
        epochs = f"{given.epochs:g}"
        part = Part("initialization.epochs", num_steps, each, "its epochs", None, epochs)
    else:
        part = Part("initialization.steps", num_steps, each, "its steps", lowest=0)
    return Cost("training of theta*", Unit.IMAGES, (part,))


def _soup_images(config: RunConfig, each: int) -> Cost:
    num_learners, soup = config.learners.num_learners, config.soup
    alone = Part("learners.num_learners", num_learners, each, "learners on their own")
    tried = (num_learners - 1) * each
    mixed = Part("soup.num_alphas", soup.num_alphas, tried, "mixtures of learners")
    parts = (alone, mixed) if soup.method is SoupMethod.GREEDY else (alone,)
    return Cost("evaluation for the soup", Unit.IMAGES, parts)


def _disk(config: RunConfig, figures: ModelFigures, data: DataFigures) -> Cost:
    learners, sent = config.learners, result_bytes(figures)
    number, snapshots = learners.num_learners, learners.num_snapshots
    shard = learners.num_minibatches * learners.batch_size * data.example_bytes
    weights = figures.weights_bytes
    return Cost(
        "the run's files",
        Unit.BYTES,
        (
            Part("model", 2, weights, "theta* and theta_p", None, config.model),
            Part("learners.num_learners", number, shard + sent, "shards and results"),
            Part("learners.num_snapshots", snapshots, number * sent, "snapshots", 0),
        ),
    )


def _files(config: RunConfig, figures: ModelFigures, data: DataFigures) -> tuple[Cost, ...]:
    learners = config.learners
    each = learners.batch_size * data.example_bytes
    model = Part("model", 1, figures.weights_bytes, "its weights", None, config.model)
    shard = Part("learners.num_minibatches", learners.num_minibatches, each, "its examples")
    return (
        Cost("a file of weights", Unit.BYTES, (model,)),
        Cost("a shard's file", Unit.BYTES, (shard,)),
    )
