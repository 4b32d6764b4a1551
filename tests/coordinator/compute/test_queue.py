"""A heavy and a light process of the queue."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lipt.common.inputs.specs import ImageSpec
from lipt.common.observability.logs import log_context, logging_about
from lipt.common.observability.tracing import current_traceparent, span
from lipt.coordinator.compute.context import Context
from lipt.coordinator.compute.jobs.pretraining import DataDescription
from lipt.coordinator.compute.messages import Asked, Cost
from lipt.coordinator.compute.progress import Progressed
from lipt.coordinator.compute.queue import ComputeQueue
from tests.digits import digits_settings
from tests.embedded.compute import ThreadQueue
from tests.remembered_spans import remembering

LABELS = Asked(cost=Cost.LABELS)
KNOWN = DataDescription(
    "two", ("a", "b"), (1, 1), ImageSpec(1, 8, 8), "f" * 64, labels=b"\1\0\0\0\0\0\0\0"
)


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


TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@dataclass(frozen=True)
class WhoseAmI:
    def run(self, context: Context) -> tuple[dict[str, str], str]:
        logging.getLogger("lipt.test").warning("at work")
        return dict(log_context()), current_traceparent()


async def test_a_job_belongs_to_what_asked_for_it_whoever_asks_beside_it(tmp_path: Path) -> None:
    async def asked(queue: ThreadQueue, run: str) -> dict[str, str]:
        with logging_about(run=run):
            context, _ = await queue.run(WhoseAmI())
        return context

    queue = ThreadQueue(digits_settings(tmp_path))
    try:
        found = await asyncio.gather(*(asked(queue, run) for run in ("a", "b", "c")))
    finally:
        await queue.stop()
    assert found == [{"run": "a"}, {"run": "b"}, {"run": "c"}]


async def test_a_job_is_a_span_of_what_asked_for_it(tmp_path: Path) -> None:
    queue = ThreadQueue(digits_settings(tmp_path))
    try:
        with remembering() as spans, span("stage"):
            _, within = await queue.run(WhoseAmI())
    finally:
        await queue.stop()
    job = spans["WhoseAmI"]
    assert job.parent is not None
    assert job.parent.span_id == spans["stage"].context.span_id
    assert within.split("-")[2] == f"{job.context.span_id:016x}"
