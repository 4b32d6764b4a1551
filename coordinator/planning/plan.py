"""Run plan: a run's threads, memory, images and disk by place, without later selections."""

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
# A mask bit per float32 value.
_MASK_SHARE = 32


@dataclass(frozen=True)
class DataFigures:
    """Examples per class, or per stratum of another target, and their inputs."""

    class_counts: Sequence[int]
    inputs: InputSpec
    other_target: OtherTarget | None = None

    @classmethod
    def of(cls, dataset: Dataset) -> Self:
        """The figures of an open data set."""
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
        """Bytes held in memory; 0 for a large image set."""
        if not isinstance(self.inputs, ImageSpec):
            return self.num_examples * self.example_bytes
        decoded = self.num_examples * _RGB * self.inputs.height * self.inputs.width
        return decoded if decoded <= MEMORY_BUDGET_BYTES else 0


@dataclass(frozen=True)
class RunPlan:
    """The costs of a run by place, each with a limit of its own.

    A worker's costs are per learner, the compute process's per stage. `max_blob_bytes` are of
    single files, in the state directory and on the wire.
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
    """Plan a run; `evaluation_batch_size` is in images per forward pass on the coordinator."""
    learners, soup, initial = config.learners, config.soup, config.initialization
    held_out = num_validation_examples(data.class_counts, config.validation)
    num_train = data.num_examples - held_out
    num_steps = num_initialization_steps(initial, num_train)
    # A batch never exceeds the training split.
    batch = min(initial.batch_size, num_train)
    num_batch_norm = min(soup.batch_norm_examples, num_train) * soup.reestimate_batch_norm
    evaluation = Part("evaluation_threads", config.evaluation_threads, 1, "evaluation")
    training = Part("learners.cpu_threads", learners.cpu_threads, 1, "theta*'s training")
    threads = (
        Cost("evaluation on the coordinator", Unit.THREADS, (evaluation,)),
        Cost("training of theta* on the coordinator", Unit.THREADS, (training,)),
    )
    size = data.example_bytes
    model = Part("model", 1, figures.weights_bytes, "its weights", None, config.model)
    # A minibatch's examples.
    minibatch = learners.batch_size * size
    shard = Part("learners.num_minibatches", learners.num_minibatches, minibatch, "its examples")
    memory = learner_memory(learners, config.model, figures, example_bytes=size)
    return RunPlan(
        worker_threads=(learner_threads(learners),),
        worker_memory=(memory,),
        worker_images=(learner_images(learners),),
        compute_threads=threads if num_steps else threads[:1],
        compute_memory=_compute_memory(
            config,
            figures,
            data,
            num_trained=batch * bool(num_steps),
            num_scored=(held_out, num_batch_norm),
            evaluation_batch_size=evaluation_batch_size,
        ),
        compute_images=(
            _initialization_images(config, num_steps, max(batch, STEP_IMAGES)),
            _soup_images(config, held_out + num_batch_norm),
        ),
        run_disk=(_disk(config, figures, minibatch),),
        max_blob_bytes=(
            Cost("a file of weights", Unit.BYTES, (model,)),
            Cost("a shard's file", Unit.BYTES, (shard,)),
        ),
    )


def result_bytes(figures: ModelFigures) -> int:
    """Maximum bytes of a learner's result: all of its weights, and a mask."""
    return figures.sent_bytes + figures.sent_bytes // _MASK_SHARE


def _compute_memory(
    config: RunConfig,
    figures: ModelFigures,
    data: DataFigures,
    *,
    num_trained: int,
    num_scored: tuple[int, int],
    evaluation_batch_size: int,
) -> tuple[Cost, ...]:
    """Memory of the stages, by the examples of a training batch and those that score models."""
    size, soup, weights = data.example_bytes, config.soup, figures.weights_bytes
    number, split = str(config.initialization.batch_size), f"{config.validation.fraction:g}"
    norm, most = str(soup.batch_norm_examples), config.learners.num_minibatches
    shard = config.learners.batch_size * size * _SHARD_COPIES
    each = evaluation_batch_size * (figures.evaluation_bytes + INPUT_BYTES * size) + weights
    step = training_bytes_per_example(figures, size)
    held_out, num_batch_norm = num_scored
    stages = {
        "theta*": (
            Part("initialization.batch_size", num_trained, step, "a step's activations", 1, number),
        ),
        "the shards": (Part("learners.num_minibatches", most, shard, "a shard"),),
        "the soup": (
            Part("validation.fraction", held_out, size, "the validation split", None, split),
            Part(
                "soup.batch_norm_examples",
                num_batch_norm,
                size,
                "examples for batch-norm statistics",
                name=norm,
            ),
            # A GPU scores one model at a time; its memory is not counted.
            Part(
                "evaluation_threads",
                num_evaluated_together(config),
                each,
                "batches' activations and models that are scored at a time",
            ),
        ),
    }
    threads = max(config.evaluation_threads, config.learners.cpu_threads)
    always = (
        Part("", 1, PROCESS_BYTES, "the process"),
        Part("", 1, data.resident_bytes, "the data"),
        Part("evaluation_threads", threads, THREAD_BYTES, "threads"),
        Part("model", MODEL_COPIES, weights, "copies of the weights", None, config.model),
    )
    return tuple(
        Cost(f"memory of the compute process for {stage}", Unit.BYTES, (*always, *parts))
        for stage, parts in stages.items()
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


def _disk(config: RunConfig, figures: ModelFigures, minibatch_bytes: int) -> Cost:
    learners, sent = config.learners, result_bytes(figures)
    each = learners.num_minibatches * minibatch_bytes + sent
    sent_by_all = learners.num_learners * sent
    parts = (
        Part("model", 2, figures.weights_bytes, "theta* and theta_p", None, config.model),
        Part("learners.num_learners", learners.num_learners, each, "shards and results"),
        Part("learners.num_snapshots", learners.num_snapshots, sent_by_all, "snapshots", 0),
    )
    return Cost("the run's files", Unit.BYTES, parts)
