"""Run's plan: threads, memory, images and disk that a run will take, by place; a pure function.

What subsets of the run take is not in it: they are asked for later, and depend on the strategy.
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
# Images are counted as RGB while they are read.
_RGB = 3
# A mask of a bit per float32 value.
_MASK_SHARE = 32


@dataclass(frozen=True)
class DataFigures:
    """What a plan needs to know of a data set: examples per class, and what each of them is."""

    class_counts: Sequence[int]
    inputs: InputSpec
    # Where examples have no single class; `class_counts` are those of their strata then.
    other_target: OtherTarget | None = None

    @classmethod
    def of(cls, dataset: Dataset) -> Self:
        """Those of a data set that is open."""
        targets = dataset.rows.targets
        counts_C = torch.bincount(dataset.labels_N, minlength=len(dataset.class_names))
        other_target = None if targets is None else targets.target
        return cls(tuple(counts_C.tolist()), dataset.inputs, other_target)

    @property
    def target(self) -> Target:
        """What a model is to give of an example."""
        return self.other_target or SingleLabel(len(self.class_counts))

    @property
    def num_examples(self) -> int:
        """N."""
        return sum(self.class_counts)

    @property
    def example_bytes(self) -> int:
        """What a stored example takes."""
        return self.inputs.num_bytes

    @property
    def resident_bytes(self) -> int:
        """What stays in memory of it: of images all of a small set, and none of a large one."""
        if not isinstance(self.inputs, ImageSpec):
            return self.num_examples * self.example_bytes
        decoded = self.num_examples * _RGB * self.inputs.height * self.inputs.width
        return decoded if decoded <= MEMORY_BUDGET_BYTES else 0


@dataclass(frozen=True)
class RunPlan:
    """What a run takes, by place; of several costs in one place each has to fit on its own.

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
    """What a run will take.

    Args:
        config: the run's.
        figures: what its model takes.
        data: what it is made on.
        evaluation_batch_size: images per forward pass on the coordinator.
    """
    planner = _Planner(config, figures, data)
    learners = config.learners
    memory = learner_memory(learners, config.model, figures, example_bytes=data.example_bytes)
    return RunPlan(
        worker_threads=(learner_threads(learners),),
        worker_memory=(memory,),
        worker_images=(learner_images(learners),),
        compute_threads=planner.threads(),
        compute_memory=(
            planner.initialization_memory(),
            planner.sharding_memory(),
            planner.soup_memory(evaluation_batch_size),
        ),
        compute_images=(planner.initialization_images(), planner.soup_images()),
        run_disk=(planner.disk(),),
        max_blob_bytes=planner.files(),
    )


def result_bytes(figures: ModelFigures) -> int:
    """What a learner hands in takes at most: all of its weights, and which of them are kept."""
    return figures.sent_bytes + figures.sent_bytes // _MASK_SHARE


class _Planner:
    """The coordinator's part of a plan."""

    def __init__(self, config: RunConfig, figures: ModelFigures, data: DataFigures) -> None:
        self._config = config
        self._figures = figures
        self._data = data
        self._num_held_out = num_validation_examples(data.class_counts, config.validation)
        self._num_train = data.num_examples - self._num_held_out
        self._num_steps = num_initialization_steps(config.initialization, self._num_train)

    def threads(self) -> tuple[Cost, ...]:
        config, costs = self._config, []
        soup = Part("evaluation_threads", config.evaluation_threads, 1, "evaluation")
        costs.append(Cost("evaluation on the coordinator", Unit.THREADS, (soup,)))
        if self._num_steps:
            threads = config.learners.cpu_threads
            training = Part("learners.cpu_threads", threads, 1, "theta*'s training")
            costs.append(Cost("training of theta* on the coordinator", Unit.THREADS, (training,)))
        return tuple(costs)

    def initialization_memory(self) -> Cost:
        set_to = self._config.initialization.batch_size
        each = training_bytes_per_example(self._figures, self._data.example_bytes)
        images = self._initialization_batch if self._num_steps else 0
        batch = Part(
            "initialization.batch_size", images, each, "a step's activations", name=str(set_to)
        )
        return self._memory("theta*", batch)

    def sharding_memory(self) -> Cost:
        learners = self._config.learners
        each = learners.batch_size * self._data.example_bytes * _SHARD_COPIES
        shard = Part("learners.num_minibatches", learners.num_minibatches, each, "a shard")
        return self._memory("the shards", shard)

    def soup_memory(self, batch_size: int) -> Cost:
        each = self._data.example_bytes
        held_out = Part(
            "validation.fraction",
            self._num_held_out,
            each,
            "the validation split",
            None,
            f"{self._config.validation.fraction:g}",
        )
        statistics = Part(
            "soup.batch_norm_examples",
            self._num_batch_norm,
            each,
            "examples for batch-norm statistics",
            name=str(self._config.soup.batch_norm_examples),
        )
        evaluated = self._figures.evaluation_bytes + INPUT_BYTES * each
        # A GPU scores one at a time; its memory is not counted here.
        together, weights = num_evaluated_together(self._config), self._figures.weights_bytes
        scored = Part(
            "evaluation_threads",
            together,
            batch_size * evaluated + weights,
            "batches' activations and models that are scored at a time",
        )
        return self._memory("the soup", held_out, statistics, scored)

    def initialization_images(self) -> Cost:
        given = self._config.initialization
        each = max(self._initialization_batch, STEP_IMAGES)
        if given.steps is None:
            epochs = f"{given.epochs:g}"
            part = Part("initialization.epochs", self._num_steps, each, "its epochs", None, epochs)
        else:
            part = Part("initialization.steps", self._num_steps, each, "its steps", lowest=0)
        return Cost("training of theta*", Unit.IMAGES, (part,))

    def soup_images(self) -> Cost:
        num_learners, soup = self._config.learners.num_learners, self._config.soup
        each = self._num_held_out + self._num_batch_norm
        alone = Part("learners.num_learners", num_learners, each, "learners on their own")
        if soup.method is not SoupMethod.GREEDY:
            return Cost("evaluation for the soup", Unit.IMAGES, (alone,))
        tried = (num_learners - 1) * each
        mixed = Part("soup.num_alphas", soup.num_alphas, tried, "mixtures of learners")
        return Cost("evaluation for the soup", Unit.IMAGES, (alone, mixed))

    def disk(self) -> Cost:
        learners, weights = self._config.learners, self._figures.weights_bytes
        sent = result_bytes(self._figures)
        shard = learners.num_minibatches * learners.batch_size * self._data.example_bytes
        number = learners.num_learners
        return Cost(
            "the run's files",
            Unit.BYTES,
            (
                Part("model", 2, weights, "theta* and theta_p", None, self._config.model),
                Part("learners.num_learners", number, shard + sent, "shards and results"),
                Part(
                    "learners.num_snapshots", learners.num_snapshots, number * sent, "snapshots", 0
                ),
            ),
        )

    def files(self) -> tuple[Cost, ...]:
        learners, weights = self._config.learners, self._figures.weights_bytes
        each = learners.batch_size * self._data.example_bytes
        model = Part("model", 1, weights, "its weights", None, self._config.model)
        shard = Part("learners.num_minibatches", learners.num_minibatches, each, "its examples")
        return (
            Cost("a file of weights", Unit.BYTES, (model,)),
            Cost("a shard's file", Unit.BYTES, (shard,)),
        )

    @property
    def _initialization_batch(self) -> int:
        # A set smaller than one batch is one batch.
        return min(self._config.initialization.batch_size, self._num_train)

    @property
    def _num_batch_norm(self) -> int:
        soup = self._config.soup
        return min(soup.batch_norm_examples, self._num_train) * soup.reestimate_batch_norm

    def _memory(self, stage: str, *parts: Part) -> Cost:
        config, data = self._config, self._data
        threads = max(config.evaluation_threads, config.learners.cpu_threads)
        weights = self._figures.weights_bytes
        always = (
            Part("", 1, PROCESS_BYTES, "the process"),
            Part("", 1, data.resident_bytes, "the data"),
            Part("evaluation_threads", threads, THREAD_BYTES, "threads"),
            Part("model", MODEL_COPIES, weights, "copies of the weights", None, config.model),
        )
        return Cost(f"memory of the compute process for {stage}", Unit.BYTES, (*always, *parts))
