from __future__ import annotations

import os
import socket
from dataclasses import replace
from typing import Any

import pytest
import torch

from lipt.common.config.run_config import LearnersConfig
from lipt.common.config.settings import load_settings
from lipt.common.config.tasks import LearnerTask
from lipt.common.errors import OverLimitError
from lipt.common.observability.metrics import Phases
from lipt.common.process import Machine
from lipt.worker.assignment import WorkerLimits
from lipt.worker.instruments import SECONDS, Metering, Phase
from lipt.worker.settings import WorkerSettings, default_name
from tests.clock import Clock
from tests.worker.fake_client import TASK

CPU = torch.device("cpu")
MACHINE = Machine(num_cores=3, memory_bytes=10 * 2**30)


def limits(device: torch.device = CPU, **flags: Any) -> WorkerLimits:
    flags = {"allow_modules": ("tests.tiny",), **flags}
    return WorkerLimits(load_settings(WorkerSettings, config=None, flags=flags), MACHINE, device)


def task(**learners: Any) -> LearnerTask:
    return replace(TASK, learners=LearnersConfig(**learners))


@pytest.mark.parametrize(
    ("device", "flags", "threads", "memory"),
    [
        ("cpu", {}, 12, 8 * 2**30),
        # A CUDA device refuses by itself what it has no room for.
        ("cuda:0", {}, 12, None),
        ("cuda:0", {"max_threads": 5, "max_memory": "2GiB"}, 5, 2 * 2**30),
    ],
    ids=["machine", "device", "flags"],
)
def test_worker_limits_come_from_flags_or_the_machine(
    device: str, flags: dict[str, Any], threads: int, memory: int | None
) -> None:
    found = limits(torch.device(device), **flags)
    assert found.threads.at_most == threads
    assert (found.memory and found.memory.at_most) == memory


def test_too_many_threads_are_refused_with_the_flag() -> None:
    with pytest.raises(OverLimitError) as refused:
        limits(max_threads=2).require(task(cpu_threads=3))
    assert str(refused.value) == (
        "learners.cpu_threads = 3: training of a learner comes to 3 threads, over this worker's "
        "--max-threads = 2 threads. Lower learners.cpu_threads to at most 2, or raise this "
        "worker's --max-threads."
    )


def test_too_much_memory_is_refused_with_the_figures() -> None:
    large = replace(TASK, model="resnet18", learners=LearnersConfig(batch_size=100_000))
    words = r"learners\.batch_size = 100000: memory of a worker comes to .* GB, .* GB of it for "
    with pytest.raises(OverLimitError, match=words + "the activations of a minibatch, over this"):
        limits(max_memory="2GiB").require(large)


def test_every_worker_phase_has_a_metric() -> None:
    clock = Clock()
    metering = Metering(phases=Phases(*Phase, clock=clock))
    clock.now += 2.0
    shown = metering.readings()[SECONDS]
    assert shown == {(phase.value,): 2.0 * (phase == "joining") for phase in Phase}


def test_workers_of_one_host_have_different_names() -> None:
    assert default_name("box", 7) == "box-7"
    assert default_name("box", 8) == "box-8"
    assert WorkerSettings().name == default_name(socket.gethostname(), os.getpid())
