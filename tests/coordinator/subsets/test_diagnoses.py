from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from lipt.common.blobs.store import BlobStore
from lipt.common.errors import DataError, ProxyError, RunNotReadyError, UnknownRunError
from lipt.common.states import RunState
from lipt.coordinator.compute.jobs.selecting import Diagnosed, DiagnoseData
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import DiagnosisRecord, RunRecord
from lipt.coordinator.subsets import answers as module
from lipt.coordinator.subsets.questions import DiagnosisQuery
from tests.coordinator.fakes import DATA, FakeCompute
from tests.coordinator.subsets.conftest import MakeAnswers

MakeRun = Callable[..., RunRecord]


@dataclass
class World:
    """The diagnoses of a coordinator with a run "r" that is ready."""

    compute: FakeCompute
    blobs: BlobStore
    store: RunStore
    make_answers: MakeAnswers

    def __post_init__(self) -> None:
        self.restart(backbone=None)

    def restart(self, backbone: str | None) -> None:
        """Another coordinator of the same state, with that backbone."""
        self.answers = self.make_answers(self.store, self.compute, backbone)

    async def ask(self, **query: Any) -> DiagnosisRecord:
        return await self.answers.diagnosis(DiagnosisQuery(**query), lambda _: None, "caller")


@pytest.fixture
async def world(
    database: Database, make_run: MakeRun, blobs: BlobStore, make_answers: MakeAnswers
) -> World:
    run = make_run(state=RunState.READY).changed(
        fingerprint=DATA.fingerprint, pretrained_weights=blobs.put_bytes(b"theta_p")
    )
    store = RunStore(database)
    await store.add(run)

    def diagnose(job: DiagnoseData) -> Diagnosed:
        return Diagnosed(blobs.put_bytes(str(job.proxy).encode()), "cpu")

    compute = FakeCompute({DiagnoseData: diagnose})
    return World(compute, blobs, store, make_answers)


async def test_without_a_run_the_data_alone_is_looked_at(world: World) -> None:
    record = await world.ask()
    (job,) = world.compute.jobs
    sources = job.sources
    assert (sources.weights, sources.inputs, sources.trajectories) == (None, None, None)
    assert str(job.proxy) == "auto"
    assert (record.run_id, record.proxy, record.features_sha256) == ("", "auto", "")
    assert (record.num_examples, record.fingerprint) == (500, DATA.fingerprint)
    assert record.manifest["data"] == {
        "source": "fake",
        "fingerprint": DATA.fingerprint,
        "num_examples": 500,
    }


async def test_a_diagnosis_is_computed_once(world: World) -> None:
    assert await world.ask() == await world.ask()
    assert await world.ask(run="r") == await world.ask(run="latest")
    assert world.compute.kinds == ["DiagnoseData"] * 2


async def test_proxy_features_and_versions_are_part_of_what_is_asked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = world.blobs.put_bytes(b"features")
    records = [
        await world.ask(),
        await world.ask(proxy="ridge:patches"),
        await world.ask(run="r"),
        await world.ask(features=features),
    ]
    monkeypatch.setattr(module, "versions", lambda: {"lipt": "a later one"})
    records.append(await world.ask())
    assert len({record.key for record in records}) == len(world.compute.jobs) == 5
    assert records[3].features_sha256 == features.sha256
    assert records[4].manifest["versions"] == {"lipt": "a later one"}


@pytest.mark.parametrize(
    ("proxy", "computed"), [("", 3), ("ridge:backbone", 3), ("ridge:patches", 1)]
)
async def test_a_diagnosis_with_another_backbone_is_another_one(
    world: World, proxy: str, computed: int
) -> None:
    seen = []
    for backbone in (None, "resnet18@aa", "resnet18@bb", "resnet18@aa"):
        world.restart(backbone)
        seen.append(await world.ask(proxy=proxy))
    assert len(world.compute.jobs) == len({record.key for record in seen}) == computed
    assert seen[1] == seen[3]
    looked_at = [record.manifest["backbone"] for record in seen]
    expected = [None, "resnet18@aa", "resnet18@bb", "resnet18@aa"]
    assert looked_at == (expected if computed > 1 else [None] * 4)


async def test_one_that_the_disk_has_lost_is_computed_again(world: World) -> None:
    record = await world.ask()
    world.blobs.path(record.blob).unlink()
    assert (await world.ask()).blob == record.blob
    assert world.blobs.has(record.blob)
    assert world.compute.kinds == ["DiagnoseData"] * 2


async def test_a_run_that_cannot_be_looked_through_is_refused(
    world: World, make_run: MakeRun
) -> None:
    await world.store.add(make_run("young").changed(fingerprint=DATA.fingerprint))
    await world.store.add(make_run("other", state=RunState.READY).changed(fingerprint="e" * 64))
    with pytest.raises(UnknownRunError, match="'nobody'"):
        await world.ask(run="nobody")
    with pytest.raises(RunNotReadyError, match="name-young"):
        await world.ask(run="young")
    with pytest.raises(DataError, match=r"fingerprint e+, .* or leave the run out"):
        await world.ask(run="other")
    with pytest.raises(ProxyError, match="there is no proxy 'ridge:magic'"):
        await world.ask(proxy="ridge:magic")
    assert world.compute.jobs == []
