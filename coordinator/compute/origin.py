"""Origin: what a job was asked for by, which its log lines and spans belong to wherever it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from lipt.common.observability.logs import log_context, logging_about
from lipt.common.observability.tracing import attached, current_traceparent, span
from lipt.coordinator.compute.context import Context
from lipt.coordinator.compute.messages import Job, name_of

ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class WithOrigin(Generic[ResultT]):
    """A job that knows what it was asked for by; travels with it to the process that computes it.

    log_context: what its log lines belong to.
    traceparent: the span that it is a part of; empty where nothing is traced.
    """

    job: Job[ResultT]
    log_context: Mapping[str, str]
    traceparent: str

    def run(self, context: Context) -> ResultT:
        """Compute it, as a span of its own."""
        with (
            logging_about(**self.log_context),
            attached(self.traceparent),
            span(name_of(self.job)),
        ):
            return self.job.run(context)


def with_origin(job: Job[ResultT]) -> WithOrigin[ResultT]:
    """The job as asked for by whom is running now."""
    return WithOrigin(job, dict(log_context()), current_traceparent())
