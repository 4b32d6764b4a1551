from __future__ import annotations

import pytest

from lipt.common.errors import DataError, ProxyError, RunNotReadyError, UnknownRunError
from lipt.common.states import RunState
from lipt.coordinator.subsets import answers as module
from tests.coordinator.fakes import DATA
from tests.coordinator.made_up_runs import made_up_run
from tests.coordinator.subsets.conftest import World


async def test_without_a_run_the_data_alone_is_looked_at(world: World) -> None:
    record = await world.diagnose()
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
    assert await world.diagnose() == await world.diagnose()
    assert await world.diagnose(run="r") == await world.diagnose(run="latest")
    assert world.compute.kinds == ["DiagnoseData"] * 2


async def test_proxy_features_and_versions_are_part_of_what_is_asked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = world.blobs.put_bytes(b"features")
    records = [
        await world.diagnose(),
        await world.diagnose(proxy="ridge:patches"),
        await world.diagnose(run="r"),
        await world.diagnose(features=features),
    ]
    monkeypatch.setattr(module, "versions", lambda: {"lipt": "a later one"})
    records.append(await world.diagnose())
    assert len({record.key for record in records}) == len(world.compute.jobs) == 5
    assert records[3].features_sha256 == features.sha256
    assert records[4].manifest["versions"] == {"lipt": "a later one"}


@pytest.mark.parametrize(
    ("proxy", "computed"), [("", 3), ("ridge:backbone", 3), ("ridge:patches", 1)]
)
async def test_diagnosis_with_another_backbone_is_new(
    world: World, proxy: str, computed: int
) -> None:
    seen = []
    for backbone in (None, "resnet18@aa", "resnet18@bb", "resnet18@aa"):
        world.restart(backbone)
        seen.append(await world.diagnose(proxy=proxy))
    assert len(world.compute.jobs) == len({record.key for record in seen}) == computed
    assert seen[1] == seen[3]
    looked_at = [record.manifest["backbone"] for record in seen]
    expected = [None, "resnet18@aa", "resnet18@bb", "resnet18@aa"]
    assert looked_at == (expected if computed > 1 else [None] * 4)


async def test_one_that_the_disk_has_lost_is_computed_again(world: World) -> None:
    record = await world.diagnose()
    world.blobs.path(record.blob).unlink()
    assert (await world.diagnose()).blob == record.blob
    assert world.blobs.has(record.blob)
    assert world.compute.kinds == ["DiagnoseData"] * 2


async def test_a_run_that_cannot_be_looked_through_is_refused(world: World) -> None:
    await world.store.add(made_up_run("other", state=RunState.READY).changed(fingerprint="e" * 64))
    with pytest.raises(UnknownRunError, match="'nobody'"):
        await world.diagnose(run="nobody")
    with pytest.raises(RunNotReadyError, match="name-young"):
        await world.diagnose(run="young")
    with pytest.raises(DataError, match=r"fingerprint e+, .* or leave the run out"):
        await world.diagnose(run="other")
    with pytest.raises(ProxyError, match="there is no proxy 'ridge:magic'"):
        await world.diagnose(proxy="ridge:magic")
    assert world.compute.jobs == []
