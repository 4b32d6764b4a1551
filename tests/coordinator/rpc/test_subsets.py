from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
import pytest

from lipt.common.blobs.messages import blob_to_proto
from lipt.common.blobs.name import BlobName
from lipt.common.subsets.difference import Difference
from lipt.coordinator.compute.progress import OnProgress, Progressed
from lipt.coordinator.rpc import answering
from lipt.coordinator.rpc.subsets import SubsetService
from lipt.coordinator.state.records import SubsetRecord
from lipt.coordinator.subsets.sending import Accepted, Sending
from lipt.coordinator.subsets.service import Answer
from lipt.coordinator.subsets.stored_examples import StoredExamples
from lipt.core.selection.registry import STRATEGIES
from lipt.core.stages.asking import SubsetQuery
from lipt.v1 import subset_pb2 as pb
from lipt.v1 import subset_pb2_grpc
from tests.serving import serving

RECORD = SubsetRecord(
    key="k",
    run_id="r",
    strategy="crest",
    num_examples=2,
    balanced=True,
    fingerprint="f",
    digest="d",
    weights_sha256="w",
    manifest={"stopped_early": "nothing is left to gain."},
    blob=BlobName.of(b"subset"),
    created_at=1.0,
)


class FakeSubsets:
    """Reports once, waits to be let go, and answers every query with one record."""

    def __init__(self, blob: Path) -> None:
        blob.write_bytes(struct.pack("<2q2f", 1, 5, 1.0, 0.5))
        self.stored = StoredExamples(blob, 2)
        self.queries: list[SubsetQuery] = []
        self.callers: list[str] = []
        self.let_go = asyncio.Event()
        self.left = asyncio.Event()

    async def get(self, query: SubsetQuery, on_progress: OnProgress, caller: str) -> Answer:
        self.queries.append(query)
        self.callers.append(caller)
        on_progress(Progressed("computing", 1, 2, ahead=3))
        try:
            await self.let_go.wait()
        except asyncio.CancelledError:
            self.left.set()
            raise
        return Answer(RECORD, kept=bool(query.previous))

    async def asked(self, stub: Any, request: pb.GetSubsetRequest) -> list[pb.GetSubsetResponse]:
        """All responses; the answer comes once progress was seen."""
        self.let_go.clear()
        call = aiter(stub.GetSubset(request))
        first = await anext(call)
        self.let_go.set()
        return [first, *[response async for response in call]]

    async def sending(self, subset: SubsetRecord, accepted: Accepted) -> Sending:
        if accepted.previous:
            difference = Difference(np.array([3]), self.stored.read())
            return Sending(difference, difference_to=accepted.previous)
        resumed_at = accepted.num_received if accepted.received == subset.digest else 0
        return Sending(self.stored, packed=accepted.packed, resumed_at=resumed_at)


@pytest.fixture
def subsets(tmp_path: Path) -> FakeSubsets:
    return FakeSubsets(tmp_path / "blob")


@pytest.fixture
async def stub(subsets: FakeSubsets) -> AsyncIterator[Any]:
    service = SubsetService(subsets)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    async with (
        serving((subset_pb2_grpc.add_SubsetServiceServicer_to_server, service)) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        yield subset_pb2_grpc.SubsetServiceStub(channel)


async def test_every_strategy_says_what_it_needs_and_costs(stub: Any) -> None:
    answer = await stub.ListStrategies(pb.ListStrategiesRequest())
    listed = {strategy.name: strategy for strategy in answer.strategies}
    assert list(listed) == list(STRATEGIES)
    assert all(strategy.needs and strategy.cost for strategy in listed.values())
    assert all(option.help for strategy in listed.values() for option in strategy.options)
    assert list(listed["uniform"].needs) == ["nothing"]
    assert list(listed["uniform_per_class"].needs) == ["labels"]
    assert list(listed["grand"].needs) == ["signals"]
    assert list(listed["forgetting"].needs) == ["learners"]
    assert [preset.name for preset in listed["ccs"].presets] == ["paper"]
    assert all(preset.summary for strategy in listed.values() for preset in strategy.presets)
    assert listed["crest"].returns_weights
    for name, strategy in STRATEGIES.items():
        assert listed[name].default_proxy == strategy.proxy
    assert listed["kcenter"].works_without_labels
    assert not listed["auto"].works_without_labels
    assert [option.name for option in listed["crest"].options] == [
        "random_fraction",
        "batch_size",
        "learned_loss",
        "pretraining",
    ]
    assert not listed["uniform"].options


async def test_a_preset_is_passed_on(stub: Any, subsets: FakeSubsets) -> None:
    await subsets.asked(stub, pb.GetSubsetRequest(strategy="ccs", budget=2, preset="paper"))
    await subsets.asked(stub, pb.GetSubsetRequest(strategy="ccs", budget=2))
    assert [query.preset for query in subsets.queries] == ["paper", ""]


async def test_whether_labels_may_enter_is_passed_on(stub: Any, subsets: FakeSubsets) -> None:
    await subsets.asked(stub, pb.GetSubsetRequest(strategy="kcenter", budget=2, labels="none"))
    # An older client's.
    await subsets.asked(stub, pb.GetSubsetRequest(strategy="kcenter", budget=2))
    assert [query.labels for query in subsets.queries] == ["none", ""]


async def test_features_and_the_previous_subset_are_passed_on(
    stub: Any, subsets: FakeSubsets
) -> None:
    features = BlobName.of(b"features")
    request = pb.GetSubsetRequest(
        run_id="r", strategy="crest", budget=2, features=blob_to_proto(features), previous="d"
    )
    request.proxy = "ridge:user"
    responses = await subsets.asked(stub, request)
    (query,) = subsets.queries
    assert (query.features, query.previous, query.weights) == (features, "d", None)
    assert query.proxy == "ridge:user"
    kinds = [response.WhichOneof("part") for response in responses]
    assert kinds == ["progress", "subset", "examples"]
    assert responses[1].subset.kept
    assert responses[1].subset.num_examples == 2


async def test_a_plain_request_has_neither(stub: Any, subsets: FakeSubsets) -> None:
    request = pb.GetSubsetRequest(run_id="r", strategy="crest", budget=2)
    responses = await subsets.asked(stub, request)
    (query,) = subsets.queries
    assert (query.features, query.previous) == (None, "")
    assert not responses[1].subset.kept


async def test_a_difference_is_sent_only_to_who_accepts_it(stub: Any, subsets: FakeSubsets) -> None:
    request = pb.GetSubsetRequest(run_id="r", strategy="crest", budget=2, previous="d")
    whole = await subsets.asked(stub, request)
    request.accept_difference = True
    short = await subsets.asked(stub, request)
    assert [response.WhichOneof("part") for response in whole[1:]] == ["subset", "examples"]
    assert whole[1].subset.difference_to == ""
    assert [response.WhichOneof("part") for response in short[1:]] == ["subset", "difference"]
    assert short[1].subset.difference_to == "d"
    assert short[2].difference == pb.SubsetDifference(
        removed=[3], indices=[1, 5], weights=[1.0, 0.5]
    )


async def test_packed_examples_are_sent_only_to_who_accepts_them(
    stub: Any, subsets: FakeSubsets
) -> None:
    request = pb.GetSubsetRequest(run_id="r", strategy="crest", budget=2)
    plain = await subsets.asked(stub, request)
    request.accept_packed = True
    packed = await subsets.asked(stub, request)
    assert plain[2].examples == pb.SubsetExamples(indices=[1, 5], weights=[1.0, 0.5])
    # 2, 3 and 4 are left out between the two: bits 0 and 4 of a bitmap.
    assert packed[2].packed == pb.PackedExamples(
        first=1, high=bytes([0b10001]), weights=struct.pack("<2f", 1.0, 0.5)
    )


@pytest.mark.parametrize(
    ("packed", "kind"), [(False, "examples"), (True, "packed")], ids=["plain", "packed"]
)
async def test_what_has_come_before_a_break_is_not_sent_again(
    stub: Any, subsets: FakeSubsets, packed: bool, kind: str
) -> None:
    request = pb.GetSubsetRequest(run_id="r", strategy="crest", budget=2, accept_packed=packed)
    request.received_digest, request.num_received = "d", 1
    _, description, part = await subsets.asked(stub, request)
    assert description.subset.resumed_at == 1
    assert description.subset.num_examples == 2
    assert part.WhichOneof("part") == kind
    assert part.packed.first == 5 or list(part.examples.indices) == [5]
    # Another one is sent from its beginning.
    request.received_digest = "e"
    _, description, part = await subsets.asked(stub, request)
    assert description.subset.resumed_at == 0
    assert part.packed.first == 1 or list(part.examples.indices) == [1, 5]


async def test_who_waits_hears_that_the_service_is_alive(
    stub: Any, subsets: FakeSubsets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answering, "_SIGN_OF_LIFE_SECONDS", 0.01)
    call = aiter(stub.GetSubset(pb.GetSubsetRequest(run_id="r", strategy="crest", budget=2)))
    signs = [(await anext(call)).progress for _ in range(3)]
    assert signs == [pb.SubsetProgress(activity="computing", done=1, total=2, ahead=3)] * 3
    subsets.let_go.set()


async def test_a_client_that_leaves_is_not_waited_for(stub: Any, subsets: FakeSubsets) -> None:
    call = stub.GetSubset(pb.GetSubsetRequest(run_id="r", strategy="crest", budget=2))
    await anext(aiter(call))
    call.cancel()
    await subsets.left.wait()


async def test_callers_are_told_apart_by_their_connections(stub: Any, subsets: FakeSubsets) -> None:
    request = pb.GetSubsetRequest(run_id="r", strategy="crest", budget=2)
    await subsets.asked(stub, request)
    await subsets.asked(stub, request)
    first, second = subsets.callers
    assert first == second != ""
