"""The coordinator's parts, put together around a compute process that the test plays."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lipt.common.blobs.store import BlobStore
from lipt.common.errors import (
    ConfigError,
    DataError,
    LiptError,
    StateError,
    UnknownNameError,
    UnknownWorkerError,
)
from lipt.common.states import LearnerState, RunState
from lipt.coordinator.app import App, logging_progress
from lipt.coordinator.compute.jobs.pretraining import DescribeData
from lipt.coordinator.compute.jobs.selecting import Diagnosed, DiagnoseData
from lipt.coordinator.compute.messages import Asked, Cost, Progressed
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import RunRecord
from lipt.coordinator.subsets.answers import DiagnosisQuery
from lipt.core.stages.question import SubsetQuery
from lipt.v1 import config_pb2
from tests.clock import Clock
from tests.coordinator.fakes import (
    DATA,
    FakeCompute,
    FakeWorker,
    make_settings,
    opened,
    pretraining,
)

NOTHING = config_pb2.RunConfig()


async def until(app: App, run_id: str, reached: Callable[[RunRecord], bool]) -> RunRecord:
    """The run, once it has got so far."""
    while not reached(run := app.store.find(run_id)):
        revision = app.store.revision(run_id)
        await app.store.wait_for_change(run_id, revision, timeout_seconds=60.0)
    return run


def has_ended(run: RunRecord) -> bool:
    return run.state.ended


async def complete(app: App, run_id: str) -> None:
    worker = FakeWorker(app)
    for _ in range(2):
        await worker.hand_in(await worker.take())
    final = await until(app, run_id, has_ended)
    assert final.state is RunState.READY, final.message


async def test_run_goes_from_its_request_to_its_soup_and_subset(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    compute = pretraining(settings.state_dir)
    async with opened(settings, compute) as app:
        assert compute.known == DATA
        assert not compute.warmed
        run = await app.requests.create("q", "mine", NOTHING)
        # What cheap subsets need is there before the run is ready.
        await until(app, run.run_id, lambda run: run.state is RunState.TRAINING)
        assert compute.warmed
        await complete(app, run.run_id)
        final = app.store.find("mine")
        assert compute.asked[1:] == [Asked(run.run_id)] * 3
        await app.answers.subset(replace(QUERY, strategy="uniform"), lambda _: None, "caller")
        asked = compute.asked[-1]
    assert [learner.state for learner in final.learners] == [LearnerState.DONE] * 2
    stages = ["DescribeData", "InitializeWeights", "CutShards", "MakeSoup"]
    assert compute.kinds == [*stages, "SelectSubset"]
    assert (asked.run, asked.cost) == (run.run_id, Cost.LABELS)
    assert asked.callers is not None
    compute = pretraining(settings.state_dir)
    async with opened(settings, compute):
        assert compute.warmed


async def test_run_goes_on_where_the_last_process_left_it(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    async with opened(settings) as app:
        run = await app.requests.create("q", "mine", NOTHING)
        worker = FakeWorker(app)
        await worker.hand_in(await worker.take())
        second = await worker.take()
        before = app.store.find("mine")

    compute = pretraining(settings.state_dir)
    async with opened(settings, compute) as app:
        assert app.store.find("mine") == before
        assert await app.requests.create("q", "mine", NOTHING) == before
        # Its worker does not know of the restart, and keeps its lease all the same.
        assert app.dispatcher.leases.held_by(worker.worker_id) == second[0]
        with pytest.raises(UnknownWorkerError):
            await app.dispatcher.next_work(worker.worker_id, wait_seconds=0.0)
        await app.dispatcher.commit(worker.worker_id, *second, FakeWorker.RESULT)
        final = await until(app, run.run_id, has_ended)
    assert final.state is RunState.READY, final.message
    assert [learner.epoch for learner in final.learners] == [1, 1]
    # theta* and shards were made before.
    assert compute.kinds == ["DescribeData", "MakeSoup"]


QUERY = SubsetQuery(
    run="mine",
    strategy="grand",
    fraction=0.1,
    budget=None,
    balanced=None,
    options={},
    weights=None,
)


async def test_what_a_replaced_backbone_may_have_seen_is_computed_again(tmp_path: Path) -> None:
    file = tmp_path / "resnet18.safetensors"
    settings = make_settings(tmp_path, backbone=f"torchvision:resnet18@{file}")

    def diagnose(_: DiagnoseData) -> Diagnosed:
        blobs = BlobStore(settings.state_dir, max_blob_bytes=2**20)
        return Diagnosed(blobs.put_bytes(b"diagnosis"), "cpu")

    kinds = []
    for content in (b"first", b"second", b"first"):
        file.write_bytes(content)
        compute = pretraining(settings.state_dir)
        compute.answers[DiagnoseData] = diagnose
        async with opened(settings, compute) as app:
            if not app.store.runs():
                await complete(app, (await app.requests.create("q", "mine", NOTHING)).run_id)
            await app.answers.diagnosis(DiagnosisQuery(), lambda _: None, "caller")
            await app.answers.subset(replace(QUERY, proxy="auto"), lambda _: None, "caller")
        kinds.append(compute.kinds[-2:])
    computed = ["DiagnoseData", "SelectSubset"]
    assert kinds == [computed, computed, ["DescribeData"]]


@pytest.mark.parametrize(
    ("flags", "answer", "error", "words"),
    [
        ({"run": {"model": "resnet9"}}, DATA, UnknownNameError, "resnet9.*resnet8"),
        ({"run": {"model": "os.path:join"}}, DATA, ConfigError, "os.path:join"),
        ({}, DataError("there are no images."), DataError, "no images"),
        ({"backbone": "torchvision:resnet18@/none"}, DATA, ConfigError, "/none cannot be read"),
    ],
)
async def test_what_cannot_be_served_is_refused_and_leaves_the_state_to_the_next(
    tmp_path: Path, flags: dict[str, Any], answer: object, error: type[LiptError], words: str
) -> None:
    compute = FakeCompute({DescribeData: answer})
    with pytest.raises(error, match=words):
        async with opened(make_settings(tmp_path, **flags), compute):
            pytest.fail("it was opened")
    assert compute.stopped
    async with opened(make_settings(tmp_path)) as app:
        assert app.store.runs() == ()


async def test_coordinator_serves_also_where_it_cannot_note_what_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def full(*_: object) -> None:
        raise StateError("/state cannot be used: No space left on device.")

    monkeypatch.setattr(Database, "save", full)
    async with opened(make_settings(tmp_path)) as app:
        assert app.data == DATA
    assert "is not noted: /state cannot be used: No space left" in caplog.text


def test_what_is_reported_is_said_every_few_seconds(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock()
    report = logging_progress(clock=clock)
    for clock.now in (1.0, 5.0, 6.0, 10.0):
        report(Progressed("reading x", round(clock.now), 10))
    said = [record.message for record in caplog.records]
    assert said == ["reading x: 5 of 10", "reading x: 10 of 10"]
