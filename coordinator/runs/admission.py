"""Admission: whether a run may start here, before anything is stored."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, replace
from functools import lru_cache
from typing import Self

from torch import nn

from lipt.common.blobs.store import BlobStore
from lipt.common.computation import computation
from lipt.common.config.run_config import AdaptersConfig, RunConfig
from lipt.common.errors import LiptError, OverLimitError, WeightsError
from lipt.common.process import Machine
from lipt.common.process.devices import is_out_of_memory
from lipt.common.tensor_files import TensorSpec, specs_of, unusable
from lipt.common.text import format_bytes
from lipt.coordinator.compute.context import DataDescription
from lipt.coordinator.settings import LimitSettings, compute_memory_bytes
from lipt.core.planning import (
    MODEL_COPIES,
    Limit,
    RunPlan,
    excesses,
    plan_run,
    require_augmentation,
)
from lipt.data.inputs.specs import InputSpec
from lipt.models.checkpoints import read_initial
from lipt.models.footprint import LiveTensors, ModelFigures, measure_model
from lipt.models.head import frozen_names
from lipt.models.registry import build_model, build_without_values, is_users_own

logger = logging.getLogger(__name__)

# Built-in models whose figures are cached; there are about a hundred.
_MAX_KNOWN = 256


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

    def plan(
        self, config: RunConfig, data: DataDescription, *, evaluation_batch_size: int
    ) -> RunPlan:
        """The costs of a run of it; a ConfigError if this data or model does not allow it."""
        require_augmentation(config, data.inputs)
        frozen = frozen_names(self.model, config.learners.frozen)
        frozen_bytes = sum(self.specs[name].num_bytes for name in frozen)
        figures, counts = replace(self.figures, frozen_bytes=frozen_bytes), data.class_counts
        return plan_run(
            config, figures, data.inputs, counts, evaluation_batch_size=evaluation_batch_size
        )


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
        self._built_in = lru_cache(_MAX_KNOWN)(self._examined_built_in)
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="model-check")

    def stop(self) -> None:
        self._threads.shutdown()

    async def require(self, config: RunConfig, *, is_default: bool = False) -> str:
        """Admit a run or raise; return a note on given weights if its head is new.

        The operator's default that is over the limits is logged: no run has started from it.
        """

        def admit() -> str:
            examined, size = self._examined(config), self.evaluation_batch_size
            plan = examined.plan(config, self.data, evaluation_batch_size=size)
            found = excesses(plan.costs, self._ceilings())
            if found and not is_default:
                raise OverLimitError(" ".join(found))
            for sentence in found:
                logger.warning("the default run of [run] would be refused: %s", sentence)
            return self._check_weights(config, examined)

        return await asyncio.get_running_loop().run_in_executor(self._threads, admit)

    def _ceilings(self) -> dict[str, Limit]:
        free = shutil.disk_usage(self.blobs.root).free
        return ceilings(self.limits, self.machine, free_disk_bytes=free)

    def _examined(self, config: RunConfig) -> Examined:
        # A user's factory may return another model next time.
        if is_users_own(config.model):
            model = self._users_model(config.model, config.adapters)
            return Examined.of(model, config.model, self.data.inputs)
        return self._built_in(config.model, config.adapters)

    def _examined_built_in(self, spec: str, adapters: AdaptersConfig) -> Examined:
        num_classes, inputs = self.data.target.num_outputs, self.data.inputs
        model = build_without_values(
            spec,
            num_classes=num_classes,
            inputs=inputs,
            allowed_modules=self.allowed_modules,
            adapters=adapters,
        )
        return Examined.of(model, spec, inputs)

    def _users_model(self, spec: str, adapters: AdaptersConfig) -> nn.Module:
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
                    adapters=adapters,
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
        weights, summary = read_initial(
            self.blobs.path(self.blobs.find(given)),
            examined.model,
            new_head=new_head,
            max_bytes=self.blobs.max_blob_bytes,
        )
        if bad := unusable(weights):
            raise WeightsError(
                f"the weights that the run is to start from cannot be trained on: {bad}. Give "
                "weights from before they diverged."
            )
        return summary if new_head else ""
