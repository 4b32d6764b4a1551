"""What a worker takes on, on a machine that the test makes up."""

from __future__ import annotations

import multiprocessing
import os
import socket
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch

from lipt.common.config.run_config import AugmentationConfig, AugmentationMethod, LearnersConfig
from lipt.common.config.settings import load_settings
from lipt.common.config.tasks import LearnerTask
from lipt.common.data.shard import Shard
from lipt.common.errors import OverLimitError
from lipt.common.images.formats import ImageFormat
from lipt.common.inputs.specs import spec_of
from lipt.common.models import build_model
from lipt.common.observability.metrics import Phases
from lipt.common.planning import PROCESS_BYTES, learner_memory
from lipt.common.process.machine import Machine
from lipt.core.learner.learner import train_learner
from lipt.worker.assignment import WorkerLimits
from lipt.worker.instruments import DEVICE_MEMORY, SECONDS, Metering, Phase
from lipt.worker.settings import WorkerSettings, own_name
from tests.clock import Clock
from tests.faults.memory import reset_peak, resident_bytes
from tests.image_files import encoded, files_of
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
def test_limits_follow_from_the_flags_or_from_the_machine(
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


@pytest.mark.slow
def test_a_learner_takes_about_the_memory_that_is_planned() -> None:
    # In a process of its own: what earlier tests have given back to the allocator, and so is
    # resident already, would not be seen as taken.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as alone:
        planned, taken = alone.submit(_planned_and_taken_bytes).result()
    # Some of what is needed was there before.
    assert planned / 4 < taken < planned * 1.5


def _planned_and_taken_bytes() -> tuple[int, int]:
    learners = LearnersConfig(num_minibatches=1, num_steps=1, batch_size=256)
    image = ImageFormat(3, 32, 32, mean=(0.5,) * 3, std=(0.5,) * 3)
    given = replace(
        TASK,
        model="resnet8",
        image=image,
        learners=learners,
        augmentation=AugmentationConfig(method=AugmentationMethod.CROP_FLIP),
    )
    model = build_model("resnet8", num_classes=10, inputs=spec_of(image), seed=0)
    initial = {name: item.clone() for name, item in model.state_dict().items()}
    figures = limits()._figures_of(given)
    cost = learner_memory(learners, "resnet8", figures, example_bytes=3 * 32 * 32)

    def train(size: int) -> None:
        small = replace(given, learners=learners.model_copy(update={"batch_size": size}))
        pixels_NCHW = torch.zeros(size, 3, 32, 32, dtype=torch.uint8)
        labels_N = torch.zeros(size, dtype=torch.int64)
        # Encoded ones take more: they are decoded ahead.
        shard = Shard(encoded(files_of(pixels_NCHW), image), labels_N)
        train_learner(
            small,
            initial,
            shard,
            device=CPU,
            on_step=lambda *_: None,
            should_stop=lambda: False,
        )

    train(2)
    reset_peak()
    before = resident_bytes()
    train(256)
    return int(cost.total - PROCESS_BYTES), resident_bytes(peak=True) - before


def test_a_worker_begins_with_joining_and_every_phase_has_a_figure() -> None:
    clock = Clock()
    metering = Metering(phases=Phases(*Phase, clock=clock))
    clock.now += 2.0
    shown = metering.readings(torch.device("cpu"))
    assert shown[SECONDS] == {(phase.value,): 2.0 * (phase == "joining") for phase in Phase}
    assert shown[DEVICE_MEMORY] == {}


def test_workers_of_one_host_have_names_that_differ() -> None:
    assert own_name("box", 7) == "box-7"
    assert own_name("box", 8) == "box-8"
    assert WorkerSettings().name == own_name(socket.gethostname(), os.getpid())
