"""Worker's limits: a learner that asks for more than this worker allows is refused beforehand."""

from __future__ import annotations

from dataclasses import replace

import torch

from lipt.common.config.tasks import LearnerTask, ScoringTask
from lipt.common.errors import OverLimitError
from lipt.common.inputs.specs import spec_of
from lipt.common.models.footprint import ModelFigures, measure_model
from lipt.common.models.head import frozen_names
from lipt.common.models.registry import build_model, build_without_values, is_users_own
from lipt.common.planning import Cost, Limit, learner_memory, learner_threads, violation
from lipt.common.process.machine import Machine
from lipt.worker.settings import WorkerSettings


class WorkerLimits:
    """What this worker takes on, as configured, or else as follows from the machine.

    Attributes:
        threads: the most threads.
        memory: the most memory, main memory and the device's together; None for any: where
            nothing is configured, a CUDA device refuses by itself what it has no room for.
    """

    def __init__(self, settings: WorkerSettings, machine: Machine, device: torch.device) -> None:
        threads = settings.max_threads or machine.max_threads
        self.threads = Limit("this worker's --max-threads", threads)
        on_cpu = machine.max_memory_bytes if device.type == "cpu" else None
        memory = on_cpu if settings.max_memory is None else int(settings.max_memory)
        self.memory = None if memory is None else Limit("this worker's --max-memory", memory)
        self._allowed_modules = settings.allow_modules
        # By model: measuring one takes seconds.
        self._figures: dict[tuple[object, ...], ModelFigures] = {}

    def require(self, task: LearnerTask) -> None:
        """Refuse a learner that is too much, with an `OverLimitError` and the figures."""
        _require(learner_threads(task.learners), self.threads)
        if self.memory is not None:
            figures, example_bytes = self._figures_of(task), spec_of(task.inputs).num_bytes
            cost = learner_memory(task.learners, task.model, figures, example_bytes=example_bytes)
            _require(cost, self.memory)

    def require_threads(self, task: ScoringTask) -> None:
        """Refuse a range that asks for too many threads, with an `OverLimitError`."""
        if task.threads > self.threads.at_most:
            raise OverLimitError(
                f"the range asks for {task.threads} threads, and {self.threads.name} allows "
                f"{self.threads.at_most}."
            )

    def _figures_of(self, task: LearnerTask) -> ModelFigures:
        inputs, number = spec_of(task.inputs), task.num_classes
        key = (task.model, number, inputs, task.learners.frozen)
        if key not in self._figures:
            if is_users_own(task.model):
                model = build_model(
                    task.model,
                    num_classes=number,
                    inputs=inputs,
                    seed=0,
                    allowed_modules=self._allowed_modules,
                )
            else:
                model = build_without_values(task.model, num_classes=number, inputs=inputs)
            state, frozen = model.state_dict(), frozen_names(model, task.learners.frozen)
            figures = measure_model(model, task.model, inputs=inputs)
            frozen_bytes = sum(state[name].nbytes for name in frozen)
            self._figures[key] = replace(figures, frozen_bytes=frozen_bytes)
        return self._figures[key]


def _require(cost: Cost, limit: Limit) -> None:
    found = violation(cost, limit)
    if found is not None:
        raise OverLimitError(str(found))
