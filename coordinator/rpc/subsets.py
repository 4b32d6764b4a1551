"""Servicers of subsets and diagnoses: progress, then a description that names the file."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import asdict
from typing import Any, Generic, Self, TypeVar

import grpc.aio

from lipt.common.blobs.blob import BlobName, blob_from_proto
from lipt.coordinator.compute.messages import OnProgress, Progressed
from lipt.coordinator.rpc.limits import peer_of
from lipt.coordinator.rpc.messages import message_of
from lipt.coordinator.rpc.strategies import describe_strategies
from lipt.coordinator.subsets import Answers, DiagnosisQuery
from lipt.core.stages.question import SubsetQuery
from lipt.v1 import diagnosis_pb2, diagnosis_pb2_grpc, subset_pb2_grpc
from lipt.v1 import subset_pb2 as pb

Context = grpc.aio.ServicerContext[Any, Any]
ResultT = TypeVar("ResultT")

# Minimum and maximum time between two messages to a waiting client.
_MIN_INTERVAL_SECONDS = 0.2
_SIGN_OF_LIFE_SECONDS = 5.0


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

    async def next_report(self) -> Progressed | None:
        """The latest report, when it changes or after some seconds; None once done."""
        if self._has_told:
            await asyncio.wait({self._task}, timeout=_MIN_INTERVAL_SECONDS)
        self._has_told = True
        if not self._task.done():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SIGN_OF_LIFE_SECONDS):
                    await self._news.wait()
            self._news.clear()
        return None if self._task.done() else self._latest

    def result(self) -> ResultT:
        return self._task.result()

    def _report(self, progressed: Progressed) -> None:
        self._latest = progressed
        self._news.set()


class SubsetService(subset_pb2_grpc.SubsetServiceServicer):
    """Subsets for trainers."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    async def GetSubset(
        self, request: pb.GetSubsetRequest, context: Context
    ) -> AsyncIterator[pb.GetSubsetResponse]:
        query, caller = query_of(request), peer_of(context)
        with Answering(lambda report: self._answers.subset(query, report, caller)) as answering:
            while (latest := await answering.next_report()) is not None:
                yield pb.GetSubsetResponse(progress=pb.SubsetProgress(**asdict(latest)))
            answer = answering.result()
        subset = message_of(
            pb.Subset,
            answer.subset,
            manifest_json=json.dumps(answer.subset.manifest, sort_keys=True),
            kept=answer.kept,
            file=answer.subset.blob,
        )
        yield pb.GetSubsetResponse(subset=subset)

    async def ListStrategies(
        self, request: pb.ListStrategiesRequest, context: Context
    ) -> pb.ListStrategiesResponse:
        return describe_strategies()


class DiagnosisService(diagnosis_pb2_grpc.DiagnosisServiceServicer):
    """Diagnoses for trainers."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    async def Diagnose(
        self, request: diagnosis_pb2.DiagnoseRequest, context: Context
    ) -> AsyncIterator[diagnosis_pb2.DiagnoseResponse]:
        query = DiagnosisQuery(request.run_id, request.proxy, _blob_of(request, "features"))
        caller = peer_of(context)
        with Answering(lambda report: self._answers.diagnosis(query, report, caller)) as answering:
            while (latest := await answering.next_report()) is not None:
                progress = diagnosis_pb2.DiagnosisProgress(**asdict(latest))
                yield diagnosis_pb2.DiagnoseResponse(progress=progress)
            diagnosis = answering.result()
        description = message_of(
            diagnosis_pb2.DiagnosisDescription,
            diagnosis,
            manifest_json=json.dumps(diagnosis.manifest, sort_keys=True),
            file=diagnosis.blob,
        )
        yield diagnosis_pb2.DiagnoseResponse(diagnosis=description)


def query_of(request: pb.GetSubsetRequest) -> SubsetQuery:
    return SubsetQuery(
        run=request.run_id,
        strategy=request.strategy,
        fraction=request.fraction if request.HasField("fraction") else None,
        budget=request.budget if request.HasField("budget") else None,
        balanced=request.balanced if request.HasField("balanced") else None,
        options=dict(request.options),
        weights=_blob_of(request, "weights"),
        features=_blob_of(request, "features"),
        previous=request.previous,
        preset=request.preset,
        proxy=request.proxy,
        labels=request.labels,
        soft_labels=request.soft_labels,
    )


def _blob_of(
    request: pb.GetSubsetRequest | diagnosis_pb2.DiagnoseRequest, name: Any
) -> BlobName | None:
    return blob_from_proto(getattr(request, name)) if request.HasField(name) else None
