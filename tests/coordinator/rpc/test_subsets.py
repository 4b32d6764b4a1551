from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lipt.common.blobs.blob import BlobName, blob_to_proto
from lipt.coordinator.compute.messages import OnProgress, Progressed
from lipt.coordinator.rpc import subsets as module
from lipt.coordinator.rpc.subsets import Answering, DiagnosisService, SubsetService
from lipt.coordinator.state.records import DiagnosisRecord, SubsetRecord
from lipt.coordinator.subsets.answers import Answer, DiagnosisQuery
from lipt.core.selection.registry import STRATEGIES
from lipt.v1 import diagnosis_pb2
from lipt.v1 import subset_pb2 as pb

RECORD = SubsetRecord(
    key="k",
    run_id="r",
    strategy="crest",
    num_examples=2,
    num_classes=10,
    balanced=True,
    fingerprint="f",
    digest="d",
    weights_sha256="w",
    manifest={"stopped_early": "nothing is left to gain."},
    blob=BlobName.of(b"subset"),
    created_at=1.0,
)
DIAGNOSIS = DiagnosisRecord(
    key="k",
    run_id="r",
    proxy="ridge:learners",
    num_examples=2,
    fingerprint="f",
    features_sha256="",
    manifest={"versions": {"lipt": "0"}},
    blob=BlobName.of(b"file"),
    created_at=1.0,
)


CONTEXT = cast("Any", SimpleNamespace(peer=lambda: "peer"))


class Fake:
    """Reports once, waits to be let go, and answers every query with one value."""

    def __init__(self, answer: object) -> None:
        self.answer = answer
        self.queries: list[Any] = []
        self.let_go = asyncio.Event()
        self.left = asyncio.Event()

    async def subset(self, query: Any, on_progress: OnProgress, _: str) -> Any:
        self.queries.append(query)
        on_progress(Progressed("computing", 1, 2, ahead=3))
        try:
            await self.let_go.wait()
        except asyncio.CancelledError:
            self.left.set()
            raise
        return self.answer

    diagnosis = subset


@pytest.fixture
def subsets() -> Fake:
    return Fake(Answer(RECORD, kept=True))


@pytest.fixture
def service(subsets: Fake) -> SubsetService:
    return SubsetService(cast("Any", subsets))


async def test_every_strategy_says_what_it_needs_and_costs(service: SubsetService) -> None:
    answer = await service.ListStrategies(pb.ListStrategiesRequest(), CONTEXT)
    listed = {strategy.name: strategy for strategy in answer.strategies}
    assert list(listed) == list(STRATEGIES)
    assert all(strategy.needs and strategy.cost for strategy in listed.values())
    assert all(option.help for strategy in listed.values() for option in strategy.options)
    assert all(preset.summary for strategy in listed.values() for preset in strategy.presets)
    assert [
        list(listed[name].needs) for name in ("uniform", "uniform_per_class", "forgetting")
    ] == [
        ["nothing"],
        ["labels"],
        ["learners"],
    ]
    assert [preset.name for preset in listed["ccs"].presets] == ["paper"]
    for name, strategy in STRATEGIES.items():
        assert listed[name].default_proxy == strategy.proxy
        assert listed[name].returns_weights == strategy.returns_weights
        assert [option.name for option in listed[name].options] == [
            option.name for option in strategy.options
        ]
    assert listed["kcenter"].works_without_labels
    assert not listed["auto"].works_without_labels


async def test_features_and_the_previous_subset_are_passed_on(
    service: SubsetService, subsets: Fake
) -> None:
    features = BlobName.of(b"features")
    request = pb.GetSubsetRequest(
        run_id="r", strategy="crest", budget=2, features=blob_to_proto(features), previous="d"
    )
    request.proxy, request.preset, request.labels = "ridge:user", "paper", "none"
    request.soft_labels = True
    answering = service.GetSubset(request, CONTEXT)
    first = await anext(answering)
    subsets.let_go.set()
    responses = [first, *[response async for response in answering]]
    (query,) = subsets.queries
    assert (query.features, query.previous, query.weights) == (features, "d", None)
    assert (query.proxy, query.preset, query.labels) == ("ridge:user", "paper", "none")
    assert query.soft_labels
    kinds = [response.WhichOneof("part") for response in responses]
    assert kinds == ["progress", "subset"]
    assert responses[1].subset.file == blob_to_proto(RECORD.blob)
    assert responses[1].subset.kept
    assert (responses[1].subset.num_examples, responses[1].subset.num_classes) == (2, 10)


async def test_a_client_that_leaves_is_not_waited_for(
    service: SubsetService, subsets: Fake
) -> None:
    request = pb.GetSubsetRequest(run_id="r", strategy="crest", budget=2)
    answering = cast("AsyncGenerator[Any, None]", service.GetSubset(request, CONTEXT))
    await anext(answering)
    await answering.aclose()
    await subsets.left.wait()


async def test_progress_comes_first_and_then_where_the_file_is() -> None:
    diagnoses = Fake(DIAGNOSIS)
    features = BlobName.of(b"features")
    request = diagnosis_pb2.DiagnoseRequest(
        run_id="latest", proxy="ridge:learners", features=blob_to_proto(features)
    )
    call = DiagnosisService(cast("Any", diagnoses)).Diagnose(request, CONTEXT)
    progress = diagnosis_pb2.DiagnosisProgress(activity="computing", done=1, total=2, ahead=3)
    assert await anext(call) == diagnosis_pb2.DiagnoseResponse(progress=progress)
    diagnoses.let_go.set()
    (last,) = [response async for response in call]
    assert diagnoses.queries == [DiagnosisQuery("latest", "ridge:learners", features)]
    assert last.diagnosis == diagnosis_pb2.DiagnosisDescription(
        file=blob_to_proto(DIAGNOSIS.blob),
        fingerprint="f",
        num_examples=2,
        run_id="r",
        proxy="ridge:learners",
        manifest_json=json.dumps(DIAGNOSIS.manifest),
    )


async def test_only_the_latest_report_is_told() -> None:
    let_go = asyncio.Event()

    async def answer(report: OnProgress) -> str:
        report(Progressed("first", 1, 3))
        report(Progressed("second", 2, 3))
        await let_go.wait()
        return "done"

    with Answering(answer) as answering:
        assert await answering.next_report() == Progressed("second", 2, 3)
        let_go.set()
        assert await answering.next_report() is None
        assert answering.result() == "done"


async def test_silence_is_broken_by_what_was_told_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SIGN_OF_LIFE_SECONDS", 0.01)

    async def answer(report: OnProgress) -> None:
        report(Progressed("thinking", 0, 0))
        await asyncio.Event().wait()

    with Answering(answer) as answering:
        told = [await answering.next_report() for _ in range(3)]
    assert told == [Progressed("thinking", 0, 0)] * 3
