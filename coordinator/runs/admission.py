"""Admission: whether a run may start here, before anything is stored."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from typing import Any

from torch import nn

from lipt.common.blobs.store import BlobStore
from lipt.common.computation import computation
from lipt.common.config.run_config import AdaptersConfig, InitializationConfig, RunConfig
from lipt.common.errors import LiptError, OverLimitError, WeightsError
from lipt.common.process import Machine
from lipt.common.process.devices import is_out_of_memory
from lipt.common.tensor_files import unusable
from lipt.common.text import format_bytes
from lipt.coordinator.compute.context import DataDescription
from lipt.coordinator.settings import LimitSettings, compute_memory_bytes
from lipt.core.planning import MODEL_COPIES, Limit, RunPlan, excesses, plan_run
from lipt.models.checkpoints import read_initial
from lipt.models.footprint import LiveTensors, ModelFigures, measure_model
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
    disk = Limit("the free space of the state directory", free_disk_bytes)
    if limits.run_disk is not None and limits.run_disk <= free_disk_bytes:
        disk = Limit("limits.run_disk", limits.run_disk)
    named = {name: Limit(f"limits.{name}", int(most)) for name, most in at_most.items()}
    return named | {"run_disk": disk}


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
        self._built_in = lru_cache(_MAX_KNOWN)(self._measured)
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="model-check")

    def stop(self) -> None:
        self._threads.shutdown()

    async def require(self, config: RunConfig, *, is_default: bool = False) -> str:
        """Admit a run or raise; return a note on given weights if its head is new.

        The operator's default that is over the limits is logged: no run has started from it.
        """

        def admit() -> str:
            model, plan = self.plan(config)
            sentences = excesses(plan.costs, self._ceilings())
            if sentences and not is_default:
                raise OverLimitError(" ".join(sentences))
            for sentence in sentences:
                logger.warning("the default run of [run] would be refused: %s", sentence)
            return self._check_weights(config.initialization, model)

        return await asyncio.get_running_loop().run_in_executor(self._threads, admit)

    def plan(self, config: RunConfig) -> tuple[nn.Module, RunPlan]:
        """A run's model (without values if built in) and costs.

        ConfigError if model or data does not allow it.
        """
        # A user's factory may return another model next time.
        measured = self._measured if is_users_own(config.model) else self._built_in
        model, figures = measured(config.model, config.adapters, config.learners.frozen)
        inputs, counts, size = self.data.inputs, self.data.class_counts, self.evaluation_batch_size
        return model, plan_run(config, figures, inputs, counts, evaluation_batch_size=size)

    def _ceilings(self) -> dict[str, Limit]:
        free = shutil.disk_usage(self.blobs.root).free
        return ceilings(self.limits, self.machine, free_disk_bytes=free)

    def _measured(
        self, spec: str, adapters: AdaptersConfig, frozen: tuple[str, ...]
    ) -> tuple[nn.Module, ModelFigures]:
        inputs = self.data.inputs
        build: dict[str, Any] = {
            "num_classes": self.data.target.num_outputs,
            "inputs": inputs,
            "allowed_modules": self.allowed_modules,
            "adapters": adapters,
        }
        if not is_users_own(spec):
            model = build_without_values(spec, **build)
        else:
            most = self._ceilings()["compute_memory"]
            share = most.at_most // MODEL_COPIES
            try:
                with computation(), LiveTensors(max_bytes=share):
                    model = build_model(spec, seed=0, **build)
            except (LiptError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                raise OverLimitError(
                    f"model = {spec}: building it takes more than {format_bytes(share)}, a share "
                    f"of {most.name} = {format_bytes(most.at_most)}. Choose a smaller model, or "
                    f"raise {most.name}."
                ) from error
        return model, measure_model(model, spec, inputs=inputs, frozen=frozen)

    def _check_weights(self, initial: InitializationConfig, model: nn.Module) -> str:
        if initial.weights_sha256 is None:
            return ""
        path = self.blobs.path(self.blobs.find(initial.weights_sha256))
        most = self.blobs.max_blob_bytes
        weights, summary = read_initial(path, model, new_head=initial.new_head, max_bytes=most)
        if bad := unusable(weights):
            raise WeightsError(
                f"the weights that the run is to start from cannot be trained on: {bad}. Give "
                "weights from before they diverged."
            )
        return summary if initial.new_head else ""
