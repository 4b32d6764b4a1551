from __future__ import annotations

import pytest
import torch

from lipt.common.observability.metrics import Phases
from lipt.worker.instruments import DEVICE_MEMORY, SECONDS, Metering, Phase
from tests.clock import Clock


def test_a_worker_begins_with_joining_and_every_phase_has_a_figure() -> None:
    clock = Clock()
    metering = Metering(phases=Phases(*Phase, clock=clock))
    clock.now += 2.0
    shown = metering.readings(torch.device("cpu"))
    assert shown[SECONDS] == {(phase.value,): 2.0 * (phase == "joining") for phase in Phase}
    assert shown[DEVICE_MEMORY] == {}


def test_memory_is_that_of_the_cuda_device_that_is_trained_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[torch.device] = []

    def reports(number: int) -> object:
        def report(device: torch.device) -> int:
            asked.append(device)
            return number

        return report

    monkeypatch.setattr(torch.cuda, "memory_allocated", reports(5))
    monkeypatch.setattr(torch.cuda, "memory_reserved", reports(8))
    device = torch.device("cuda:1")
    shown = Metering().readings(device)
    assert shown[DEVICE_MEMORY] == {("allocated",): 5, ("reserved",): 8}
    assert asked == [device, device]
