"""A heavy and a light process of the queue."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lipt.common.inputs.specs import ImageSpec
from lipt.coordinator.compute.context import Context
from lipt.coordinator.compute.light import KnownData
from lipt.coordinator.compute.messages import Asked, Cost
from lipt.coordinator.compute.progress import Progressed
from lipt.coordinator.compute.queue import ComputeQueue
from tests.digits import digits_settings

LABELS = Asked(cost=Cost.LABELS)
KNOWN = KnownData("two", ("a", "b"), ImageSpec(1, 8, 8), ("f" * 64,), b"\1\0\0\0\0\0\0\0")


@dataclass(frozen=True)
class Where:
    """Answers with the process that it is in."""

    def run(self, context: Context) -> int:
        return os.getpid()


@dataclass(frozen=True)
class Labels:
    def run(self, context: Context) -> list[int]:
        labels: list[int] = context.dataset.labels_N.tolist()
        return labels


@dataclass(frozen=True)
class Hang:
    def run(self, context: Context) -> None:
        context.report("hanging", 0, 1)
        signal.pause()


@pytest.fixture
async def queue(tmp_path: Path) -> AsyncIterator[ComputeQueue]:
    queue = ComputeQueue(digits_settings(tmp_path))
    yield queue
    await queue.stop()


async def test_light_job_does_not_wait_for_a_heavy_one(queue: ComputeQueue) -> None:
    queue.open_light(KNOWN)
    queue.warm()
    hanging = asyncio.Event()

    def note(now: Progressed) -> None:
        if now.activity == "hanging":
            hanging.set()

    dear = asyncio.create_task(queue.run(Hang(), note))
    await hanging.wait()
    second = asyncio.create_task(queue.run(Where()))
    assert await queue.run(Labels(), asked=LABELS) == [1, 0]
    assert not dear.done()
    assert queue.waiting() == {"cheap": 0, "dear": 1}
    # With the dear one its child goes; the light one's stays.
    cheap = await queue.run(Where(), asked=LABELS)
    dear.cancel()
    assert await second not in (cheap, os.getpid())
    assert await queue.run(Where(), asked=LABELS) == cheap


async def test_without_a_light_process_the_heavy_one_does_everything(queue: ComputeQueue) -> None:
    queue.warm()
    assert await queue.run(Where(), asked=LABELS) == await queue.run(Where())
    assert queue.waiting() == {"cheap": 0, "dear": 0}
