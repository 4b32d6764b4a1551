"""`lipt.v1.SubsetService`: subsets over gRPC."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict
from typing import Any

import grpc.aio

from lipt.common.blobs.messages import blob_from_proto
from lipt.common.subsets.difference import Difference, Examples
from lipt.coordinator.rpc.answering import Answering
from lipt.coordinator.rpc.peers import peer_of
from lipt.coordinator.rpc.strategies import describe_strategies
from lipt.coordinator.subsets.sending import Accepted, Part, Sending
from lipt.coordinator.subsets.service import Answer, Subsets
from lipt.core.stages.asking import SubsetQuery
from lipt.v1 import subset_pb2 as pb
from lipt.v1 import subset_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]


class SubsetService(subset_pb2_grpc.SubsetServiceServicer):
    """What trainers call."""

    def __init__(self, subsets: Subsets) -> None:
        self._subsets = subsets

    async def GetSubset(
        self, request: pb.GetSubsetRequest, context: Context
    ) -> AsyncIterator[pb.GetSubsetResponse]:
        """Compute or read a subset, and stream it."""
        query, caller = query_of(request), peer_of(context)
        with Answering(lambda report: self._subsets.get(query, report, caller)) as answering:
            while (latest := await answering.next_report()) is not None:
                yield pb.GetSubsetResponse(progress=pb.SubsetProgress(**asdict(latest)))
            answer = answering.result()
        sending = await self._subsets.sending(answer.subset, _accepted(request))
        yield pb.GetSubsetResponse(subset=_description(answer, sending))
        parts = sending.parts()
        # One at a time, when the one before is on its way: who stalls holds a single one.
        while (part := await asyncio.to_thread(_next_content, parts)) is not None:
            yield part

    async def ListStrategies(
        self, request: pb.ListStrategiesRequest, context: Context
    ) -> pb.ListStrategiesResponse:
        """Describe every strategy."""
        return describe_strategies()


def query_of(request: pb.GetSubsetRequest) -> SubsetQuery:
    """What a request asks for."""
    return SubsetQuery(
        run=request.run_id,
        strategy=request.strategy,
        fraction=request.fraction if request.HasField("fraction") else None,
        budget=request.budget if request.HasField("budget") else None,
        balanced=request.balanced if request.HasField("balanced") else None,
        options=dict(request.options),
        weights=blob_from_proto(request.weights) if request.HasField("weights") else None,
        features=blob_from_proto(request.features) if request.HasField("features") else None,
        previous=request.previous,
        preset=request.preset,
        proxy=request.proxy,
        labels=request.labels,
    )


def _accepted(request: pb.GetSubsetRequest) -> Accepted:
    return Accepted(
        previous=request.previous if request.accept_difference else "",
        packed=request.accept_packed,
        received=request.received_digest,
        num_received=request.num_received,
    )


def _next_content(parts: Iterator[Part]) -> pb.GetSubsetResponse | None:
    """The next part as a message; None at the end."""
    part = next(parts, None)
    if part is None:
        return None
    if isinstance(part, Examples):
        examples = pb.SubsetExamples(indices=part.indices_K, weights=part.weights_K)
        return pb.GetSubsetResponse(examples=examples)
    if isinstance(part, Difference):
        difference = pb.SubsetDifference(
            removed=part.removed_R, indices=part.changed.indices_K, weights=part.changed.weights_K
        )
        return pb.GetSubsetResponse(difference=difference)
    return pb.GetSubsetResponse(packed=pb.PackedExamples(**vars(part)))


def _description(answer: Answer, sending: Sending) -> pb.Subset:
    subset = answer.subset
    return pb.Subset(
        run_id=subset.run_id,
        strategy=subset.strategy,
        num_examples=subset.num_examples,
        balanced=subset.balanced,
        fingerprint=subset.fingerprint,
        digest=subset.digest,
        weights_sha256=subset.weights_sha256,
        manifest_json=json.dumps(subset.manifest, sort_keys=True),
        kept=answer.kept,
        difference_to=sending.difference_to,
        resumed_at=sending.resumed_at,
    )
