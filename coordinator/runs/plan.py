"""Plan of a run, and whether it may start here, before anything is stored.

A plan lists a run's threads, memory, images and disk. Later selections are not included.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, fields, replace
from pathlib import Path
from typing import Self

from torch import nn

from lipt.common.blobs.store import BlobStore
from lipt.common.computation import computation
from lipt.common.config.run_config import AugmentationMethod, RunConfig, SoupMethod
from lipt.common.errors import ConfigError, LiptError, OverLimitError, WeightsError
from lipt.common.process import Machine, this_machine
from lipt.common.process.devices import is_out_of_memory
from lipt.common.tensor_files import TensorSpec, specs_of, unusable
from lipt.common.text import format_bytes
from lipt.coordinator.compute.context import DataDescription
from lipt.coordinator.settings import LimitSettings, compute_memory_bytes
from lipt.core.planning import (
    INPUT_BYTES,
    MODEL_COPIES,
    PROCESS_BYTES,
    STEP_IMAGES,
    THREAD_BYTES,
    Limit,
    Part,
    PlannedCost,
    Violation,
    learner_images,
    learner_memory,
    learner_threads,
    training_bytes_per_example,
    violation,
)
from lipt.core.pretraining.evaluation import num_evaluated_together
from lipt.core.pretraining.initialization import num_initialization_steps
from lipt.core.pretraining.sharding import num_validation_examples, require_shards_fit
from lipt.data.inputs.specs import ImageSpec, InputSpec
from lipt.data.loading import MEMORY_BUDGET_BYTES
from lipt.models.checkpoints import read_checkpoint
from lipt.models.footprint import LiveTensors, ModelFigures, measure_model
from lipt.models.head import frozen_names, head_names
from lipt.models.registry import build_model, build_without_values, is_users_own

logger = logging.getLogger(__name__)

# Built-in models whose figures are cached; there are about a hundred.
_MAX_KNOWN = 256
# Copies of a shard in memory: its examples, the parts of its file, and the file.
_SHARD_COPIES = 3
# Channels of an image while it is read.
_RGB = 3
# A mask bit per float32 value.
_MASK_SHARE = 32


def resident_bytes(data: DataDescription) -> int:
    """Bytes of the data in memory; 0 for a large image set."""
    if not isinstance(data.inputs, ImageSpec):
        return data.num_examples * data.inputs.num_bytes
    decoded = data.num_examples * _RGB * data.inputs.height * data.inputs.width
    return decoded if decoded <= MEMORY_BUDGET_BYTES else 0


@dataclass(frozen=True)
class RunPlan:
    """The costs of a run: per learner on workers, per stage here, and per file."""

    worker_threads: tuple[PlannedCost, ...]
    worker_memory: tuple[PlannedCost, ...]
    worker_images: tuple[PlannedCost, ...]
    compute_threads: tuple[PlannedCost, ...]
    compute_memory: tuple[PlannedCost, ...]
    compute_images: tuple[PlannedCost, ...]
    run_disk: tuple[PlannedCost, ...]
    max_blob_bytes: tuple[PlannedCost, ...]


def plan_run(
    config: RunConfig, figures: ModelFigures, data: DataDescription, *, evaluation_batch_size: int
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
        PlannedCost("evaluation on the coordinator", "threads", (evaluation,)),
        PlannedCost("training of theta* on the coordinator", "threads", (training,)),
    )
    size = data.inputs.num_bytes
    model = Part("model", 1, figures.weights_bytes, "its weights", None, config.model)
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
            _soup_images(config, held_out, num_batch_norm),
        ),
        run_disk=(_disk(config, figures, minibatch),),
        max_blob_bytes=(
            PlannedCost("a file of weights", "bytes", (model,)),
            PlannedCost("a shard's file", "bytes", (shard,)),
        ),
    )


def result_bytes(figures: ModelFigures) -> int:
    return figures.sent_bytes + figures.sent_bytes // _MASK_SHARE


def _compute_memory(
    config: RunConfig,
    figures: ModelFigures,
    data: DataDescription,
    *,
    num_trained: int,
    num_scored: tuple[int, int],
    evaluation_batch_size: int,
) -> tuple[PlannedCost, ...]:
    size, soup, weights = data.inputs.num_bytes, config.soup, figures.weights_bytes
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
        Part("", 1, resident_bytes(data), "the data"),
        Part("evaluation_threads", threads, THREAD_BYTES, "threads"),
        Part("model", MODEL_COPIES, weights, "copies of the weights", None, config.model),
    )
    return tuple(
        PlannedCost(f"memory of the compute process for {stage}", "bytes", (*always, *parts))
        for stage, parts in stages.items()
    )


def _initialization_images(config: RunConfig, num_steps: int, each: int) -> PlannedCost:
    given = config.initialization
    if given.steps is None:
        epochs = f"{given.epochs:g}"
        part = Part("initialization.epochs", num_steps, each, "its epochs", None, epochs)
    else:
        part = Part("initialization.steps", num_steps, each, "its steps", lowest=0)
    return PlannedCost("training of theta*", "images", (part,))


def _soup_images(config: RunConfig, held_out: int, num_batch_norm: int) -> PlannedCost:
    num_learners, soup = config.learners.num_learners, config.soup
    each = held_out + num_batch_norm
    alone = Part("learners.num_learners", num_learners, each, "learners on their own")
    mixtures = each * (num_learners - 1)
    if soup.method is SoupMethod.INTERPOLATION:
        mixed = Part("soup.num_alphas", soup.num_alphas, mixtures, "mixtures of learners")
    else:
        mixed = Part("", int(soup.method is SoupMethod.GREEDY), mixtures, "mixtures of learners")
    return PlannedCost("evaluation for the soup", "images", (alone, mixed))


def _disk(config: RunConfig, figures: ModelFigures, minibatch_bytes: int) -> PlannedCost:
    learners, sent = config.learners, result_bytes(figures)
    each = learners.num_minibatches * minibatch_bytes + sent
    sent_by_all = learners.num_learners * sent
    parts = (
        Part("model", 2, figures.weights_bytes, "theta* and theta_p", None, config.model),
        Part("learners.num_learners", learners.num_learners, each, "shards and results"),
        Part("learners.num_snapshots", learners.num_snapshots, sent_by_all, "snapshots", 0),
    )
    return PlannedCost("the run's files", "bytes", parts)


def ceilings(limits: LimitSettings, machine: Machine, *, free_disk_bytes: int) -> dict[str, Limit]:
    at_most = {
        "worker_threads": limits.worker_threads,
        "worker_memory": limits.worker_memory,
        "worker_images": limits.worker_images,
        "compute_threads": limits.compute_threads or machine.max_threads,
        "compute_memory": compute_memory_bytes(limits, machine),
        "compute_images": limits.compute_images,
        "max_blob_bytes": limits.max_blob_bytes,
    }
    disk = Limit("what is free in the state directory", free_disk_bytes, "free space there")
    if limits.run_disk is not None and limits.run_disk <= free_disk_bytes:
        disk = Limit("limits.run_disk", limits.run_disk)
    named = {name: Limit(f"limits.{name}", int(most)) for name, most in at_most.items()}
    return named | {"run_disk": disk}


def violations(plan: RunPlan, ceilings: Mapping[str, Limit]) -> tuple[Violation, ...]:
    return tuple(
        found
        for place in fields(RunPlan)
        for cost in getattr(plan, place.name)
        if (found := violation(cost, ceilings[place.name])) is not None
    )


def require_none(found: Sequence[Violation]) -> None:
    worst: dict[str, Violation] = {}
    for item in found:
        if item.knob not in worst or item.times > worst[item.knob].times:
            worst[item.knob] = item
    if worst:
        raise OverLimitError(" ".join(item.sentence for item in worst.values()))


def log_all(found: Sequence[Violation]) -> None:
    for one in found:
        logger.warning("the default run of [run] would be refused: %s", one.sentence)


@dataclass(frozen=True)
class Examined:
    """A model (without values if built in), its figures and its tensors."""

    model: nn.Module
    figures: ModelFigures
    specs: dict[str, TensorSpec]

    @classmethod
    def of(cls, model: nn.Module, spec: str, inputs: InputSpec) -> Self:
        figures = measure_model(model, spec, inputs=inputs)
        return cls(model, figures, specs_of(model.state_dict()))

    def figures_of(self, config: RunConfig) -> ModelFigures:
        """Its figures in a run; a ConfigError if no layer, or every layer, is frozen."""
        frozen = frozen_names(self.model, config.learners.frozen)
        return replace(
            self.figures, frozen_bytes=sum(self.specs[name].num_bytes for name in frozen)
        )


def require_augmentation(config: RunConfig, inputs: InputSpec) -> None:
    method = config.augmentation.method
    if method is AugmentationMethod.CROP_FLIP and not isinstance(inputs, ImageSpec):
        raise ConfigError(
            f"augmentation.method is {method}, which is of images; the data has {inputs}. Leave "
            "it out: such examples are not augmented."
        )


def plan_here(
    config: RunConfig, model: nn.Module, data: DataDescription, *, evaluation_batch_size: int
) -> tuple[ModelFigures, RunPlan, tuple[Violation, ...]]:
    """Plan a run, and list what exceeds this machine; a ConfigError if it fits nowhere."""
    held_out = num_validation_examples(data.class_counts, config.validation)
    require_shards_fit(data.num_examples - held_out, config.learners)
    require_augmentation(config, data.inputs)
    figures = Examined.of(model, config.model, data.inputs).figures_of(config)
    plan = plan_run(config, figures, data, evaluation_batch_size=evaluation_batch_size)
    free = shutil.disk_usage(Path.cwd()).free
    limits = ceilings(LimitSettings(), this_machine(), free_disk_bytes=free)
    return figures, plan, violations(plan, limits)


@dataclass(eq=False)
class RunAdmission:
    """Admits runs, or refuses them with the figures."""

    blobs: BlobStore
    data: DataDescription
    _: KW_ONLY
    limits: LimitSettings
    machine: Machine
    allowed_modules: Collection[str]
    # In images per forward pass.
    evaluation_batch_size: int

    def __post_init__(self) -> None:
        self._known: dict[str, Examined] = {}
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="model-check")

    def stop(self) -> None:
        self._threads.shutdown()

    async def require(
        self, config: RunConfig, judge: Callable[[Sequence[Violation]], None] = require_none
    ) -> str:
        """Admit a run or raise; return a note on given weights if its head is new."""

        def admit() -> str:
            require_augmentation(config, self.data.inputs)
            examined, size = self._examined(config.model), self.evaluation_batch_size
            figures = examined.figures_of(config)
            plan = plan_run(config, figures, self.data, evaluation_batch_size=size)
            judge(violations(plan, self._ceilings()))
            return self._check_weights(config, examined)

        return await asyncio.get_running_loop().run_in_executor(self._threads, admit)

    def _ceilings(self) -> dict[str, Limit]:
        free = shutil.disk_usage(self.blobs.root).free
        return ceilings(self.limits, self.machine, free_disk_bytes=free)

    def _examined(self, spec: str) -> Examined:
        if spec in self._known:
            return self._known[spec]
        users_own = is_users_own(spec)
        num_classes, inputs = self.data.target.num_outputs, self.data.inputs
        model = (
            self._users_model(spec)
            if users_own
            else build_without_values(spec, num_classes=num_classes, inputs=inputs)
        )
        examined = Examined.of(model, spec, inputs)
        # A user's factory may return another model next time.
        if not users_own and len(self._known) < _MAX_KNOWN:
            self._known[spec] = examined
        return examined

    def _users_model(self, spec: str) -> nn.Module:
        most = self._ceilings()["compute_memory"]
        share = most.at_most // MODEL_COPIES
        try:
            with computation(), LiveTensors(max_bytes=share):
                return build_model(
                    spec,
                    num_classes=self.data.target.num_outputs,
                    inputs=self.data.inputs,
                    seed=0,
                    allowed_modules=self.allowed_modules,
                )
        except (LiptError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise OverLimitError(
                f"model = {spec}: building it takes more than {format_bytes(share)}, a share of "
                f"{most.name} = {format_bytes(most.at_most)}. Choose a smaller model, or raise "
                f"{most.name}."
            ) from error

    def _check_weights(self, config: RunConfig, examined: Examined) -> str:
        given, new_head = config.initialization.weights_sha256, config.initialization.new_head
        if given is None:
            return ""
        weights, summary = read_checkpoint(
            self.blobs.path(self.blobs.find(given)),
            like=examined.specs,
            head=head_names(examined.model),
            new_head=new_head,
            max_bytes=self.blobs.max_blob_bytes,
        )
        if bad := unusable(weights):
            raise WeightsError(
                f"the weights that the run is to start from cannot be trained on: {bad}. Give "
                "weights from before they diverged."
            )
        return summary if new_head else ""
