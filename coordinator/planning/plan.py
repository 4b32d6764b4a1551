"""Run plan: a run's threads, memory, images and disk by place, without later selections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch

from lipt.common.config.run_config import RunConfig, SoupMethod, SoupSearch
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
from lipt.core.evaluation import num_evaluated_together, num_norm_examples
from lipt.core.sharding import num_validation_examples
from lipt.core.soup import slice_sizes
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
    planner = _Planner(config, figures, data, evaluation_batch_size)
    learners = config.learners
    memory = learner_memory(learners, config.model, figures, example_bytes=data.example_bytes)
    return RunPlan(
        worker_threads=(learner_threads(learners),),
        worker_memory=(memory,),
        worker_images=(learner_images(learners),),
        compute_threads=planner.threads(),
        compute_memory=(
            planner.memory("theta*", planner.step()),
            planner.memory("the shards", planner.shard()),
            planner.memory("the soup", *planner.soup()),
        ),
        compute_images=(planner.initialization_images(), planner.soup_images()),
        run_disk=(planner.disk(),),
        max_blob_bytes=planner.files(),
    )


def result_bytes(figures: ModelFigures) -> int:
    """Maximum bytes of a learner's result: all of its weights, and a mask."""
    return figures.sent_bytes + figures.sent_bytes // _MASK_SHARE


@dataclass(frozen=True)
class _Planner:
    config: RunConfig
    figures: ModelFigures
    data: DataFigures
    evaluation_batch_size: int

    @property
    def held_out(self) -> int:
        return num_validation_examples(self.data.class_counts, self.config.validation)

    @property
    def num_train(self) -> int:
        return self.data.num_examples - self.held_out

    @property
    def num_steps(self) -> int:
        return num_initialization_steps(self.config.initialization, self.num_train)

    @property
    def batch(self) -> int:
        # A batch never exceeds the training split.
        return min(self.config.initialization.batch_size, self.num_train)

    @property
    def num_batch_norm(self) -> int:
        soup = self.config.soup
        return min(soup.batch_norm_examples, self.num_train) * soup.reestimate_batch_norm

    @property
    def shard_bytes(self) -> int:
        """Bytes of a minibatch's examples."""
        return self.config.learners.batch_size * self.data.example_bytes

    def threads(self) -> tuple[Cost, ...]:
        evaluation = Part("evaluation_threads", self.config.evaluation_threads, 1, "evaluation")
        number = self.config.learners.cpu_threads
        training = Part("learners.cpu_threads", number, 1, "theta*'s training")
        costs = (
            Cost("evaluation on the coordinator", Unit.THREADS, (evaluation,)),
            Cost("training of theta* on the coordinator", Unit.THREADS, (training,)),
        )
        return costs if self.num_steps else costs[:1]

    def memory(self, stage: str, *parts: Part) -> Cost:
        config, weights = self.config, self.figures.weights_bytes
        threads = max(config.evaluation_threads, config.learners.cpu_threads)
        always = (
            Part("", 1, PROCESS_BYTES, "the process"),
            Part("", 1, self.data.resident_bytes, "the data"),
            Part("evaluation_threads", threads, THREAD_BYTES, "threads"),
            Part("model", MODEL_COPIES, weights, "copies of the weights", None, config.model),
        )
        return Cost(f"memory of the compute process for {stage}", Unit.BYTES, (*always, *parts))

    def step(self) -> Part:
        each = training_bytes_per_example(self.figures, self.data.example_bytes)
        name, images = str(self.config.initialization.batch_size), self.batch * bool(self.num_steps)
        return Part("initialization.batch_size", images, each, "a step's activations", name=name)

    def shard(self) -> Part:
        number = self.config.learners.num_minibatches
        return Part("learners.num_minibatches", number, self.shard_bytes * _SHARD_COPIES, "a shard")

    def soup(self) -> tuple[Part, ...]:
        config, each = self.config, self.data.example_bytes
        fraction, examples = f"{config.validation.fraction:g}", str(config.soup.batch_norm_examples)
        norm = "examples for batch-norm statistics"
        evaluated = self.figures.evaluation_bytes + INPUT_BYTES * each
        return (
            Part(
                "validation.fraction", self.held_out, each, "the validation split", None, fraction
            ),
            Part("soup.batch_norm_examples", self.num_batch_norm, each, norm, name=examples),
            # A GPU scores one model at a time; its memory is not counted.
            Part(
                "evaluation_threads",
                num_evaluated_together(config),
                self.evaluation_batch_size * evaluated + self.figures.weights_bytes,
                "batches' activations and models that are scored at a time",
            ),
        )

    def initialization_images(self) -> Cost:
        given, each = self.config.initialization, max(self.batch, STEP_IMAGES)
        if given.steps is None:
            epochs, number = f"{given.epochs:g}", self.num_steps
            part = Part("initialization.epochs", number, each, "its epochs", None, epochs)
        else:
            part = Part("initialization.steps", self.num_steps, each, "its steps", lowest=0)
        return Cost("training of theta*", Unit.IMAGES, (part,))

    def soup_images(self) -> Cost:
        num_learners, soup = self.config.learners.num_learners, self.config.soup
        each = self.held_out + self.num_batch_norm
        alone = Part("learners.num_learners", num_learners, each, "learners on their own")
        images, tried = 0, soup.num_alphas
        if soup.search is SoupSearch.HALVING:
            for size in slice_sizes(self.held_out, tried):
                images += tried * (size + min(num_norm_examples(size), self.num_batch_norm))
                tried = -(-tried // 2)
        per_ratio = -(-(images + tried * each) // soup.num_alphas) * (num_learners - 1)
        mixed = Part("soup.num_alphas", soup.num_alphas, per_ratio, "mixtures of learners")
        parts = (alone, mixed) if soup.method is SoupMethod.GREEDY else (alone,)
        return Cost("evaluation for the soup", Unit.IMAGES, parts)

    def disk(self) -> Cost:
        learners, sent = self.config.learners, result_bytes(self.figures)
        number, weights = learners.num_learners, self.figures.weights_bytes
        each = learners.num_minibatches * self.shard_bytes + sent
        snapshots = learners.num_snapshots
        parts = (
            Part("model", 2, weights, "theta* and theta_p", None, self.config.model),
            Part("learners.num_learners", number, each, "shards and results"),
            Part("learners.num_snapshots", snapshots, number * sent, "snapshots", 0),
        )
        return Cost("the run's files", Unit.BYTES, parts)

    def files(self) -> tuple[Cost, ...]:
        weights, number = self.figures.weights_bytes, self.config.learners.num_minibatches
        model = Part("model", 1, weights, "its weights", None, self.config.model)
        shard = Part("learners.num_minibatches", number, self.shard_bytes, "its examples")
        return (
            Cost("a file of weights", Unit.BYTES, (model,)),
            Cost("a shard's file", Unit.BYTES, (shard,)),
        )
