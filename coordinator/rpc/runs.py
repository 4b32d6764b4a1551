"""`lipt.v1.RunService`: runs over gRPC."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Literal

import grpc.aio

from lipt.common.blobs.blob import blob_to_proto
from lipt.common.errors import InvalidRequestError, UnknownRunError
from lipt.common.observability.tracing import current_traceparent, received
from lipt.coordinator.rpc.limits import peer_of
from lipt.coordinator.rpc.messages import run_view
from lipt.coordinator.runs.requests import RunRequests, page_of
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.state.records import RunRecord
from lipt.coordinator.subsets import Answers
from lipt.v1 import run_pb2 as pb
from lipt.v1 import run_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]

_DEFAULT_PAGE_SIZE = 100
_MAX_PAGE_SIZE = 1000
_READ_AT_ONCE = 20
# Minimum and maximum time between two messages to a watcher.
_MIN_INTERVAL_SECONDS = 0.2
_SIGN_OF_LIFE_SECONDS = 5.0


@dataclass(eq=False)
class RunService(run_pb2_grpc.RunServiceServicer):
    """Runs for trainers."""

    store: RunStore
    requests: RunRequests
    answers: Answers
    stopping: asyncio.Event
    waiting_reason: Callable[[RunRecord], str]

    async def CreateRun(
        self, request: pb.CreateRunRequest, context: Context
    ) -> pb.CreateRunResponse:
        # The caller's span if there is one: this process may be killed before it exports its own.
        traceparent = received(context.invocation_metadata()) or current_traceparent()
        run = await self.requests.create(
            request.request_id, request.name, request.config, traceparent
        )
        return pb.CreateRunResponse(run=self._view(run))

    async def GetRun(self, request: pb.GetRunRequest, context: Context) -> pb.GetRunResponse:
        run = self.store.find(request.run_id)
        return pb.GetRunResponse(run=self._view(run))

    async def ListRuns(self, request: pb.ListRunsRequest, context: Context) -> pb.ListRunsResponse:
        if not 0 <= request.page_size <= _MAX_PAGE_SIZE:
            raise InvalidRequestError(
                f"page_size {request.page_size} is outside 0..{_MAX_PAGE_SIZE}."
            )
        size = request.page_size or _DEFAULT_PAGE_SIZE
        page, token = page_of(self.store.runs(), request.page_token, size)
        response = pb.ListRunsResponse(next_page_token=token)
        for place, run in enumerate(page):
            # Records are read from disk: let other calls run in between.
            if place and place % _READ_AT_ONCE == 0:
                await asyncio.sleep(0)
            with contextlib.suppress(UnknownRunError):  # removed meanwhile
                response.runs.append(self._view(self.store.record(run.run_id), learners=False))
        return response

    async def CancelRun(
        self, request: pb.CancelRunRequest, context: Context
    ) -> pb.CancelRunResponse:
        run = await self.requests.cancel(request.run_id)
        return pb.CancelRunResponse(run=self._view(run))

    async def WatchRun(
        self, request: pb.WatchRunRequest, context: Context
    ) -> AsyncIterator[pb.WatchRunResponse]:
        """Stream a run at every change until it has ended, or this service stops."""
        run_id = self.store.find(request.run_id).run_id
        seen = request.after_revision
        while not self.stopping.is_set():
            current = await self.store.wait_for_change(
                run_id, seen, timeout_seconds=_SIGN_OF_LIFE_SECONDS
            )
            run = self.store.find(run_id)
            yield pb.WatchRunResponse(run=self._view(run))
            if run.state.ended:
                return
            seen = current
            await asyncio.sleep(_MIN_INTERVAL_SECONDS)

    async def GetWeights(
        self, request: pb.GetWeightsRequest, context: Context
    ) -> pb.GetWeightsResponse:
        """Name the intact blob of theta* or theta_p."""
        kinds: dict[int, Literal["theta*", "theta_p"]] = {
            pb.WEIGHTS_KIND_INITIAL: "theta*",
            pb.WEIGHTS_KIND_PRETRAINED: "theta_p",
        }
        if request.kind not in kinds:
            raise InvalidRequestError(
                f"weights kind {request.kind} is neither initial (1) nor pretrained (2)."
            )
        name = await self.answers.weights(request.run_id, kinds[request.kind], peer_of(context))
        return pb.GetWeightsResponse(weights=blob_to_proto(name))

    def _view(self, run: RunRecord, *, learners: bool = True) -> pb.Run:
        return run_view(self.store, run, waiting_reason=self.waiting_reason(run), learners=learners)
