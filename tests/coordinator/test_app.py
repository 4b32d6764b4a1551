import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lipt.common.blobs.store import BlobStore
from lipt.common.config.run_config import RunConfig
from lipt.common.errors import (
    ConfigError,
    DataError,
    LiptError,
    UnknownNameError,
    UnknownWorkerError,
)
from lipt.common.observability.metrics import Gauge
from lipt.common.requests import Budget, Proxy, SubsetRequest
from lipt.common.states import RunState
from lipt.coordinator.app import logging_progress, with_fitting_model
from lipt.coordinator.compute.jobs.pretraining import DescribeData
from lipt.coordinator.compute.jobs.selection import Diagnosed, DiagnoseData
from lipt.coordinator.compute.messages import Progressed
from lipt.coordinator.dispatch.dispatcher import Dispatcher
from lipt.coordinator.dispatch.leases import LearnerLease
from lipt.coordinator.instruments import (
    COMPUTE_PEAK,
    COMPUTE_RESIDENT,
    LEARNERS,
    RUNS,
    SOUP_ACCURACY,
    SOUP_KEPT,
    STORAGE_FREE,
    WORKERS_WAITING,
)
from lipt.coordinator.metrics import machine_readings, state_readings
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.state.database import Database
from lipt.coordinator.subsets import DiagnosisQuery
from lipt.data.inputs.specs import Column, ColumnsSpec, ColumnType, ImageSpec
from lipt.data.targets.kinds import TargetKind
from lipt.v1 import config_pb2
from tests.clock import Clock
from tests.coordinator.fakes import (
    DATA,
    SOUP_RECORD,
    FakeCompute,
    FakeWorker,
    complete,
    make_settings,
    opened,
    pretraining,
    until,
)
from tests.coordinator.made_up_runs import made_up_run

NOTHING = config_pb2.RunConfig()


async def test_a_run_resumes_after_a_restart(tmp_path: Path) -> None:
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
        # Its worker did not notice the restart, and keeps its lease.
        assert app.dispatcher.leases.held_by(worker.worker_id, LearnerLease) == second
        with pytest.raises(UnknownWorkerError):
            await app.dispatcher.next_work(worker.worker_id, wait_seconds=0.0)
        await app.dispatcher.commit(second, FakeWorker.RESULT)
        final = await until(app, run.run_id, lambda run: run.state.ended)
    assert final.state is RunState.READY, final.message
    assert [learner.epoch for learner in final.learners] == [1, 1]
    # theta* and shards were made before.
    assert compute.kinds == ["DescribeData", "MakeSoup"]


REQUEST = SubsetRequest(run="mine", strategy="grand", budget=Budget(0.1))


async def test_subsets_of_a_replaced_backbone_are_computed_again(tmp_path: Path) -> None:
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
            await app.answers.subset(replace(REQUEST, proxy=Proxy(None)), lambda _: None, "caller")
        kinds.append(compute.kinds[-2:])
    computed = ["DiagnoseData", "SelectSubset"]
    assert kinds == [computed, computed, ["DescribeData"]]


@pytest.mark.parametrize(
    ("flags", "answer", "error", "words"),
    [
        ({"run": {"model": "resnet9"}}, DATA, UnknownNameError, "resnet9.*resnet8"),
        ({}, DataError("there are no images."), DataError, "no images"),
        ({"backbone": "torchvision:resnet18@/none"}, DATA, ConfigError, "/none cannot be read"),
    ],
)
async def test_a_failed_start_releases_the_state_directory(
    tmp_path: Path, flags: dict[str, Any], answer: object, error: type[LiptError], words: str
) -> None:
    compute = FakeCompute({DescribeData: answer})
    with pytest.raises(error, match=words):
        async with opened(make_settings(tmp_path, **flags), compute):
            pytest.fail("it was opened")
    assert compute.stopped
    async with opened(make_settings(tmp_path)) as app:
        assert app.store.runs() == ()


def test_data_other_than_images_has_a_default_model_of_its_own(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    unset = settings.model_copy(update={"run": RunConfig()})
    table = ColumnsSpec((Column("x", ColumnType.FLOAT32, (3,)),))
    assert with_fitting_model(unset, table).run.model == "mlp"
    words = ColumnsSpec((Column("", ColumnType.INT64, (3,), num_values=9),))
    assert with_fitting_model(unset, words, TargetKind.TOKENS).run.model == "text:causal"
    assert with_fitting_model(unset, ImageSpec(1, 8, 8)) == unset
    named = settings.model_copy(update={"run": RunConfig(model="linear", seed=3)})
    assert with_fitting_model(named, table) == named


def test_progress_is_logged_every_few_seconds(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock()
    report = logging_progress(clock=clock)
    for clock.now in (1.0, 5.0, 6.0, 10.0):
        report(Progressed("reading x", round(clock.now), 10))
    said = [record.message for record in caplog.records]
    assert said == ["reading x: 5 of 10", "reading x: 10 of 10"]


def dispatcher_of(store: RunStore) -> Dispatcher:
    return Dispatcher(store, lease_seconds=1.0, clock=lambda: 0.0, wall_clock=lambda: 0.0)


async def test_metrics_count_a_held_run_as_held(database: Database) -> None:
    store = RunStore(database)
    for run_id, state in (("r", RunState.TRAINING), ("s", RunState.READY), ("t", RunState.MERGING)):
        await store.add(made_up_run(run_id, state=state))
    dispatcher = dispatcher_of(store)

    def figures(gauge: Gauge) -> Mapping[str, float]:
        found = state_readings(store, dispatcher, FakeCompute().queue)[gauge]
        return {key: value for (key,), value in found.items() if value}

    assert figures(RUNS) == {"training": 1, "ready": 1, "merging": 1}
    assert figures(LEARNERS) == {"queued": 3}
    for run_id in "rst":
        store.hold(run_id, "other data.")
    assert figures(RUNS) == {"held": 2, "ready": 1}
    assert figures(LEARNERS) == {}


async def test_soup_metrics_are_of_the_newest_ready_run(database: Database) -> None:
    store = RunStore(database)
    dispatcher = dispatcher_of(store)

    shown = state_readings(store, dispatcher, FakeCompute().queue)
    assert SOUP_ACCURACY not in shown
    assert shown[WORKERS_WAITING] == {(): 0}
    for run_id, ended_at, accuracy in (("r", 5.0, 0.5), ("s", 9.0, 0.9), ("t", 7.0, 0.7)):
        ready = made_up_run(run_id, state=RunState.READY)
        soup = SOUP_RECORD.changed(soup_accuracy=accuracy, best_learner_accuracy=0.3, num_kept=2)
        await store.add(ready.changed(soup=soup, ended_at=ended_at))
    shown = state_readings(store, dispatcher, FakeCompute().queue)
    assert shown[SOUP_ACCURACY][("soup",)] == 0.9
    assert shown[SOUP_ACCURACY][("best_learner",)] == 0.3
    assert shown[SOUP_KEPT] == {(): 2}


def test_memory_metrics_are_by_process_and_an_unreadable_disk_has_no_figure(tmp_path: Path) -> None:
    shown = machine_readings(FakeCompute().queue, tmp_path)
    assert (shown[COMPUTE_RESIDENT], shown[COMPUTE_PEAK]) == ({("dear",): 5}, {("dear",): 7})
    assert shown[STORAGE_FREE][()] > 0
    assert machine_readings(FakeCompute().queue, tmp_path / "gone")[STORAGE_FREE] == {}
