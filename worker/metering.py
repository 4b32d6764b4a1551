"""Metering: what one worker's instruments hold, and what it does at this moment."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from lipt.common.observability.metrics import Meters, Phases, Readings
from lipt.worker.instruments import DEVICE_MEMORY, SECONDS, Phase


@dataclass(frozen=True)
class Metering:
    """Written by a worker's threads, read at a scrape."""

    meters: Meters = field(default_factory=Meters)
    phases: Phases = field(default_factory=lambda: Phases(*Phase))

    def readings(self, device: torch.device) -> Readings:
        """The figures of this moment.

        Args:
            device: what this worker trains on.
        """
        memory: dict[tuple[str, ...], float] = {}
        if device.type == "cuda":
            memory = {
                ("allocated",): torch.cuda.memory_allocated(device),
                ("reserved",): torch.cuda.memory_reserved(device),
            }
        return {SECONDS: self.phases.seconds(), DEVICE_MEMORY: memory}
