from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path

from lipt.common.observability.logs import log_context, logging_about
from lipt.common.observability.tracing import current_traceparent, span
from lipt.coordinator.compute.context import Context
from tests.digits import digits_settings
from tests.embedded.compute import ThreadQueue
from tests.remembered_spans import remembering

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
