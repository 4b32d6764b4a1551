"""Servicers for trainers: runs, subsets, diagnoses, mixtures.

The stream of one that is computed has progress, then a description that names the file.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import asdict, dataclass
from typing import Any, Generic, Literal, Self, TypeVar

from lipt.common.blobs.blob import blob_from_proto, blob_to_proto
from lipt.common.errors import InvalidRequestError, StateError, UnknownRunError, UnreadableRunError
from lipt.common.observability.tracing import current_traceparent, received
from lipt.common.requests import request_from_proto
from lipt.coordinator.compute.messages import OnProgress, Progressed
from lipt.coordinator.mixtures import Mixtures
from lipt.coordinator.rpc.handlers import Context
from lipt.coordinator.rpc.limits import peer_of
from lipt.coordinator.rpc.messages import MessageT, message_of, run_view, unreadable_view
from lipt.coordinator.runs.requests import RunRequests, page_of
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.state.records import (
    DiagnosisRecord,
    MixtureRecord,
    RunRecord,
    SubsetRecord,
)
from lipt.coordinator.subsets import Answers, DiagnosisQuery
from lipt.core.catalogue import describe
from lipt.v1 import (
    diagnosis_pb2,
    diagnosis_pb2_grpc,
    mixture_pb2,
    mixture_pb2_grpc,
    run_pb2,
    run_pb2_grpc,
    subset_pb2_grpc,
)
from lipt.v1 import subset_pb2 as pb

ResultT = TypeVar("ResultT")

_DEFAULT_PAGE_SIZE = 100
_MAX_PAGE_SIZE = 1000
# Minimum and maximum time between two messages to a watching or waiting client.
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
        self, request: run_pb2.CreateRunRequest, context: Context
    ) -> run_pb2.CreateRunResponse:
        # The caller's span if there is one: this process may be killed before it exports its own.
        traceparent = received(context.invocation_metadata()) or current_traceparent()
        run = await self.requests.create(
            request.request_id, request.name, request.config, traceparent
        )
        return run_pb2.CreateRunResponse(run=self._view(run))

    async def GetRun(
        self, request: run_pb2.GetRunRequest, context: Context
    ) -> run_pb2.GetRunResponse:
        run = self.store.find(request.run_id)
        return run_pb2.GetRunResponse(run=self._view(run))

    async def ListRuns(
        self, request: run_pb2.ListRunsRequest, context: Context
    ) -> run_pb2.ListRunsResponse:
        if not 0 <= request.page_size <= _MAX_PAGE_SIZE:
            raise InvalidRequestError(
                f"page_size {request.page_size} is outside 0..{_MAX_PAGE_SIZE}."
            )
        size = request.page_size or _DEFAULT_PAGE_SIZE
        page, token = page_of(self.store.runs(), request.page_token, size)
        response = run_pb2.ListRunsResponse(next_page_token=token)
        for run in page:
            # Records are read from disk: let other calls run in between.
            await asyncio.sleep(0)
            try:
                view = self._view(self.store.record(run.run_id), learners=False)
            except UnknownRunError:  # removed meanwhile
                continue
            except (UnreadableRunError, StateError) as error:
                view = unreadable_view(self.store, run, str(error))
            response.runs.append(view)
        return response

    async def CancelRun(
        self, request: run_pb2.CancelRunRequest, context: Context
    ) -> run_pb2.CancelRunResponse:
        run = await self.requests.driver.cancel(self.store.find(request.run_id).run_id)
        return run_pb2.CancelRunResponse(run=self._view(run))

    async def WatchRun(
        self, request: run_pb2.WatchRunRequest, context: Context
    ) -> AsyncIterator[run_pb2.WatchRunResponse]:
        """Stream a run at every change until it has ended, or this service stops."""
        run_id = self.store.find(request.run_id).run_id
        seen = request.after_revision
        while not self.stopping.is_set():
            current = await self.store.wait_for_change(
                run_id, seen, timeout_seconds=_SIGN_OF_LIFE_SECONDS
            )
            run = self.store.find(run_id)
            yield run_pb2.WatchRunResponse(run=self._view(run))
            if run.state.ended:
                return
            seen = current
            await asyncio.sleep(_MIN_INTERVAL_SECONDS)

    async def GetWeights(
        self, request: run_pb2.GetWeightsRequest, context: Context
    ) -> run_pb2.GetWeightsResponse:
        """Name the intact blob of theta* or theta_p."""
        kinds: dict[int, Literal["theta*", "theta_p"]] = {
            run_pb2.WEIGHTS_KIND_INITIAL: "theta*",
            run_pb2.WEIGHTS_KIND_PRETRAINED: "theta_p",
        }
        if request.kind not in kinds:
            raise InvalidRequestError(
                f"weights kind {request.kind} is neither initial (1) nor pretrained (2)."
            )
        name = await self.answers.weights(request.run_id, kinds[request.kind], peer_of(context))
        return run_pb2.GetWeightsResponse(weights=blob_to_proto(name))

    def _view(self, run: RunRecord, *, learners: bool = True) -> run_pb2.Run:
        return run_view(self.store, run, waiting_reason=self.waiting_reason(run), learners=learners)


class Answering(Generic[ResultT]):
    """A running computation and its latest report; cancelled at the end of the block."""

    def __init__(self, answer: Callable[[OnProgress], Coroutine[Any, Any, ResultT]]) -> None:
        # Only the latest report is sent.
        self._latest = Progressed("", 0, 0)
        self._has_told = False
        self._news = asyncio.Event()
        self._task = asyncio.ensure_future(answer(self._report))
        self._task.add_done_callback(lambda _: self._news.set())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._task.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Progressed:
        """The latest report, when it changes or after some seconds; ends once done."""
        if self._has_told:
            await asyncio.wait({self._task}, timeout=_MIN_INTERVAL_SECONDS)
        self._has_told = True
        if not self._task.done():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SIGN_OF_LIFE_SECONDS):
                    await self._news.wait()
            self._news.clear()
        if self._task.done():
            raise StopAsyncIteration
        return self._latest

    def result(self) -> ResultT:
        return self._task.result()

    def _report(self, progressed: Progressed) -> None:
        self._latest = progressed
        self._news.set()


def described(
    kind: type[MessageT], answer: SubsetRecord | DiagnosisRecord | MixtureRecord, **more: Any
) -> MessageT:
    """The description of a stored answer, which names its file."""
    manifest = json.dumps(answer.manifest, sort_keys=True)
    return message_of(kind, answer, manifest_json=manifest, file=answer.blob, **more)


@dataclass(eq=False)
class SubsetService(subset_pb2_grpc.SubsetServiceServicer):
    """Subsets for trainers."""

    answers: Answers

    async def GetSubset(
        self, request: pb.GetSubsetRequest, context: Context
    ) -> AsyncIterator[pb.GetSubsetResponse]:
        asked, caller = request_from_proto(request), peer_of(context)
        with Answering(lambda report: self.answers.subset(asked, report, caller)) as answering:
            async for latest in answering:
                yield pb.GetSubsetResponse(progress=run_pb2.Progress(**asdict(latest)))
            record, kept = answering.result()
        yield pb.GetSubsetResponse(subset=described(pb.Subset, record, kept=kept))

    async def ListStrategies(
        self, request: pb.ListStrategiesRequest, context: Context
    ) -> pb.ListStrategiesResponse:
        strategies = [pb.Strategy(**asdict(strategy)) for strategy in describe()]
        return pb.ListStrategiesResponse(strategies=strategies)


@dataclass(eq=False)
class DiagnosisService(diagnosis_pb2_grpc.DiagnosisServiceServicer):
    """Diagnoses for trainers."""

    answers: Answers

    async def Diagnose(
        self, request: diagnosis_pb2.DiagnoseRequest, context: Context
    ) -> AsyncIterator[diagnosis_pb2.DiagnoseResponse]:
        features = blob_from_proto(request.features) if request.HasField("features") else None
        query = DiagnosisQuery(request.run_id, request.proxy, features)
        caller = peer_of(context)
        with Answering(lambda report: self.answers.diagnosis(query, report, caller)) as answering:
            async for latest in answering:
                yield diagnosis_pb2.DiagnoseResponse(progress=run_pb2.Progress(**asdict(latest)))
            description = described(diagnosis_pb2.DiagnosisDescription, answering.result())
        yield diagnosis_pb2.DiagnoseResponse(diagnosis=description)


@dataclass(eq=False)
class MixtureService(mixture_pb2_grpc.MixtureServiceServicer):
    """Mixtures for trainers."""

    mixtures: Mixtures

    async def GetMixture(
        self, request: mixture_pb2.GetMixtureRequest, context: Context
    ) -> AsyncIterator[mixture_pb2.GetMixtureResponse]:
        name, target = request.run_id, blob_from_proto(request.target)
        caller = peer_of(context)
        with Answering(
            lambda report: self.mixtures.mixture(name, target, report, caller)
        ) as answering:
            async for latest in answering:
                yield mixture_pb2.GetMixtureResponse(progress=run_pb2.Progress(**asdict(latest)))
            description = described(mixture_pb2.MixtureDescription, answering.result())
        yield mixture_pb2.GetMixtureResponse(mixture=description)
