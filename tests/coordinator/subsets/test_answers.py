from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from lipt.common.blobs.blob import BlobName
from lipt.common.config.run_config import InitializationConfig
from lipt.common.errors import (
    DataError,
    InvalidRequestError,
    OtherDataError,
    ProxyError,
    RunNotReadyError,
    SignalsError,
    UnknownNameError,
    UnknownRunError,
)
from lipt.common.observability.metrics import Meters
from lipt.common.states import RunState
from lipt.coordinator import subsets as module
from lipt.coordinator.compute.jobs.selection import RecheckSubset, SelectSubset
from lipt.coordinator.runs.availability import find_ready
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.state.database import Database
from lipt.core.selection.select import STRATEGIES
from lipt.core.stages.recheck import Recheck
from tests.coordinator.fakes import DATA
from tests.coordinator.made_up_runs import made_up_run
from tests.coordinator.subsets.conftest import HOLDS, THETA, THETA_P, World

FAILS = Recheck(1.0, 2.0)


async def test_a_subset_is_computed_once(world: World) -> None:
    first, again = await world.ask_again(), await world.ask_again()
    assert first == again
    assert not first[1]
    first = first[0]
    assert world.compute.kinds == ["SelectSubset"]
    assert first.manifest["stopped_early"] == ""
    assert first.manifest["features_sha256"] is None


async def test_a_subset_with_a_distrusted_credential_s_scores_is_selected_again(
    world: World,
) -> None:
    await world.ask(strategy="craig")
    world.credentials = ["honest", "liar"]
    first = await world.ask()
    assert first.manifest["scored_by"] == {
        "credentials": [{"credential": "honest"}, {"credential": "liar"}]
    }
    await world.answers.forget_scores_of("liar")
    begun = iter([["liar"], ["honest"]])
    world.compute.answers[SelectSubset] = lambda job: (
        setattr(world, "credentials", next(begun)) or world.select(job)
    )
    again = await world.ask()
    # On kept signals of that credential it was computed once more.
    assert again.manifest["scored_by"] == {"credentials": [{"credential": "honest"}]}
    assert world.compute.kinds == ["SelectSubset"] * 4
    await world.ask(strategy="craig")
    assert len(world.compute.kinds) == 4


async def test_a_subset_that_stopped_early_has_its_count_and_reason(world: World) -> None:
    world.stopped_early = "nothing is left to gain."
    subset = await world.ask()
    assert subset.num_examples == 9
    assert subset.manifest["budget"] == 10
    assert subset.manifest["stopped_early"] == "nothing is left to gain."
    assert len(await world.answers.examples(subset)) == 9


async def test_warm_up_seconds_are_separate_from_selection_seconds(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[float] = []
    monkeypatch.setattr(Meters, "observe", lambda _self, _of, value, *_: told.append(value))
    hour = {"seconds": 3610.0, "warm_up_seconds": 4000.0, "spent_warm_up_seconds": 3600.0}
    world.compute.answers[SelectSubset] = lambda job: replace(world.select(job), **hour)
    costs: Any = (await world.ask()).manifest["costs"]
    assert costs["selection_seconds"] == 10.0
    assert costs["warm_up_seconds"] == 4000.0
    # Of an hour that did not really go by: all but the little that did.
    assert [round(value / 3600) for value in told] == [-1]


async def test_a_selection_by_labels_does_not_wait_for_theta_p(world: World) -> None:
    world.damage(THETA_P, lose=True)
    await world.ask(strategy="uniform")
    assert world.compute.kinds == ["SelectSubset"]


async def test_a_lost_theta_p_is_recomputed_once_for_all_callers(world: World) -> None:
    world.damage(THETA_P, lose=True)
    begun, let_go = world.merge_slowly()
    asking = [asyncio.create_task(world.ask(budget=budget)) for budget in (10, 11)]
    await begun.wait()
    let_go.set()
    await asyncio.gather(*asking)
    assert sorted(world.compute.kinds) == ["MakeSoup", "SelectSubset", "SelectSubset"]


async def test_features_are_part_of_the_subset_s_key(world: World) -> None:
    features = world.upload(b"features")
    plain, with_features = await world.ask(), await world.ask(features=features)
    assert plain.key != with_features.key
    assert world.compute.jobs[-1].request.features == features
    assert with_features.manifest["features_sha256"] == features.sha256
    assert (await world.ask(features=features)).key == with_features.key


async def test_a_preset_is_resolved_and_stands_in_the_manifest(world: World) -> None:
    # Beta is that of a tenth of the data; the score that is given wins.
    subset = await world.ask(
        strategy="ccs", preset="paper", budget=DATA.num_examples // 10, options={"score": "el2n"}
    )
    assert subset.manifest["preset"] == "paper"
    assert subset.manifest["options"] == {"score": "el2n", "beta": "0.3", "num_strata": "50"}
    assert not subset.balanced
    with pytest.raises(UnknownNameError, match=r"no preset 'papers'\. Choose one of: paper,"):
        await world.ask(strategy="ccs", preset="papers")


async def test_subsets_of_an_older_definition_are_not_reused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await world.ask(strategy="kcenter")
    monkeypatch.setitem(STRATEGIES, "kcenter", replace(STRATEGIES["kcenter"], revision=1))
    second = await world.ask(strategy="kcenter")
    assert second.key != first.key
    assert world.compute.kinds == ["SelectSubset"] * 2


async def test_the_previous_subset_is_kept_while_it_is_valid(world: World) -> None:
    first = await world.ask()
    weights = world.upload(b"later weights")
    assert await world.ask_again(weights=weights, previous=first.digest) == (first, True)
    recheck = world.compute.jobs[-1]
    assert isinstance(recheck, RecheckSubset)
    assert (recheck.anchor, recheck.weights) == (BlobName.of(THETA_P), weights)
    assert world.compute.kinds == ["SelectSubset", "RecheckSubset"]


async def test_a_new_subset_is_selected_once_it_is_not(world: World) -> None:
    first = await world.ask()
    weights = world.upload(b"later weights")
    world.compute.answers[RecheckSubset] = FAILS
    second, kept = await world.ask_again(weights=weights, previous=first.digest)
    assert not kept
    assert second.digest != first.digest
    assert second.weights_sha256 == weights.sha256
    assert world.compute.kinds == ["SelectSubset", "RecheckSubset", "SelectSubset"]
    # The next one is anchored where the second was selected.
    world.compute.answers[RecheckSubset] = HOLDS
    latest = world.upload(b"the latest of all weights")
    assert await world.ask_again(weights=latest, previous=second.digest) == (second, True)
    assert world.compute.jobs[-1].anchor == weights


@pytest.mark.parametrize(
    "other",
    [
        {"strategy": "grand"},
        {"budget": 11},
        {"balanced": False},
        {"options": {"batch_size": "4"}},
        {"features": BlobName.of(b"features")},
        {"proxy": "ridge:patches"},
        {"weights": None},
    ],
)
async def test_another_request_s_subset_is_not_kept(world: World, other: dict[str, Any]) -> None:
    first = await world.ask()
    query = {"weights": world.upload(b"later weights"), "previous": first.digest}
    assert not (await world.ask_again(**(query | other)))[1]
    assert "RecheckSubset" not in world.compute.kinds


async def test_a_previous_subset_without_its_weights_is_ignored(world: World) -> None:
    old = world.upload(b"old")
    first = await world.ask(weights=old)
    world.blobs.path(old).unlink()
    weights = world.upload(b"later weights")
    assert not (await world.ask_again(weights=weights, previous=first.digest))[1]
    assert "RecheckSubset" not in world.compute.kinds


async def test_the_newest_of_equal_previous_subsets_is_used(world: World) -> None:
    # The same examples came out for two weights; the trainer last asked with the newer ones.
    first = await world.ask()
    newer = world.upload(b"theta_q")
    assert (await world.ask(weights=newer)).digest == first.digest
    await world.ask(weights=world.upload(b"later weights"), previous=first.digest)
    assert world.compute.jobs[-1].anchor == newer


async def test_dynamics_of_other_weights_are_refused(world: World) -> None:
    with pytest.raises(SignalsError, match="`weights` unset"):
        await world.ask(strategy="forgetting", weights=world.upload(b"later weights"))


async def test_the_proxy_is_part_of_the_subset_s_key(world: World) -> None:
    plain, first = await world.ask(), await world.ask(proxy="ridge:soup+patches")
    second = await world.ask(proxy="ridge:patches+soup")
    assert plain.key != first.key == second.key
    assert str(world.compute.jobs[-1].request.proxy) == "ridge:patches+soup"
    assert world.compute.jobs[-1].sources.trajectories is None


@pytest.mark.parametrize("diagnoses", [False, True], ids=["subset", "diagnosis"])
@pytest.mark.parametrize(
    ("proxy", "computed"), [("auto", 3), ("ridge:backbone", 3), ("ridge:patches", 1)]
)
async def test_another_backbone_gives_another_subset(
    world: World, proxy: str, computed: int, diagnoses: bool
) -> None:
    seen, looked_at = [], []
    for backbone in (None, "resnet18@aa", "resnet18@bb", "resnet18@aa"):
        world.restart(backbone)
        if diagnoses:
            record: Any = await world.diagnose(proxy=proxy)
            looked_at.append(record.manifest["backbone"])
        else:
            record = await world.ask(proxy=proxy)
            looked_at.append(record.manifest["proxy"].get("backbone"))
        seen.append(record)
    assert len(world.compute.jobs) == len({record.key for record in seen}) == computed
    assert seen[1] == seen[3]
    expected = [None, "resnet18@aa", "resnet18@bb", "resnet18@aa"]
    assert looked_at == (expected if computed > 1 else [None] * 4)


@pytest.mark.parametrize(("backbone", "kept"), [("resnet18@aa", True), ("resnet18@bb", False)])
async def test_a_previous_subset_keeps_its_backbone(
    world: World, backbone: str, kept: bool
) -> None:
    world.restart("resnet18@aa")
    first = await world.ask(proxy="auto")
    world.restart(backbone)
    query = {"weights": world.upload(b"later weights"), "previous": first.digest}
    assert (await world.ask_again(proxy="auto", **query))[1] == kept


async def test_learners_are_used_only_with_their_own_soup(world: World) -> None:
    await world.ask(proxy="ridge:learners")
    trajectories = world.compute.jobs[-1].sources.trajectories
    assert trajectories.initial_weights == BlobName.of(b"theta*")
    await world.ask(proxy="ridge:learners", weights=world.upload(b"later weights"))
    assert world.compute.jobs[-1].sources.trajectories is None
    # `auto` never tries them.
    await world.ask(proxy="auto")
    assert world.compute.jobs[-1].sources.trajectories is None


async def test_the_use_of_labels_is_part_of_the_subset_s_key(world: World) -> None:
    unlabelled = {"strategy": "kcenter", "labels": "none"}
    given = await world.ask(strategy="kcenter", balanced=False, proxy="ridge:patches")
    none = await world.ask(**unlabelled)
    assert world.compute.jobs[-1].request.unlabelled
    assert none.key != given.key
    assert (given.manifest["labels"], none.manifest["labels"]) == ("given", "none")
    # Everything else is the same.
    assert not none.balanced
    assert none.manifest["proxy"] == given.manifest["proxy"] == {"proxy": "ridge:patches"}
    assert none.manifest["options"] == {"space": "features"}
    # What is resolved and what is given are one question.
    again = await world.ask(**unlabelled, options={"space": "features"}, proxy="ridge:patches")
    assert again == none
    assert world.compute.kinds == ["SelectSubset"] * 2


async def test_a_damaged_subset_is_selected_again(world: World) -> None:
    first = await world.ask()
    world.blobs.path(first.blob).write_bytes(b"x" * first.blob.size_bytes)
    assert (await world.ask()).digest == first.digest
    assert world.compute.kinds == ["SelectSubset"] * 2
    assert len(await world.answers.examples(first)) == 10


async def test_strategies_that_need_labels_are_refused_without_them(world: World) -> None:
    with pytest.raises(InvalidRequestError, match="'crest' cannot choose with labels=none"):
        await world.ask(labels="none")
    with pytest.raises(InvalidRequestError, match="weights and labels=none"):
        await world.ask(strategy="kcenter", labels="none", weights=world.upload(b"later weights"))
    assert world.compute.kinds == []


async def test_theta_star_is_available_before_the_learners(world: World) -> None:
    theta = world.upload(b"theta*")
    asked = {"run": "young", "proxy": "ridge:patches+initial"}
    for proxy in ("ridge:initial+learners", "auto", ""):
        with pytest.raises(RunNotReadyError, match="0 of 3 learners are in"):
            await world.ask(run="young", proxy=proxy)
    early = await world.ask(**asked)
    job = world.compute.jobs[-1].sources
    assert (job.weights, job.initial, job.trajectories) == (theta, theta, None)
    assert early.weights_sha256 == theta.sha256
    # theta_p changes nothing in it.
    ready = {"state": RunState.READY, "pretrained_weights": world.upload(THETA_P)}
    await world.store.update("young", lambda run: run.changed(**ready))
    assert await world.ask(**asked) == early
    assert world.compute.kinds == ["SelectSubset"]


@pytest.mark.parametrize("name", ["young", "latest"])
@pytest.mark.parametrize(
    ("strategy", "asked"),
    [
        ("auto", {"proxy": "ridge:patches"}),
        ("auto", {"proxy": "ridge:columns"}),
        ("uniform_per_class", {}),
        ("kcenter", {"labels": "none"}),
        ("kcenter", {"features": BlobName.of(b"mine"), "options": {"space": "features"}}),
        ("crest", {"weights": BlobName.of(b"own weights")}),
    ],
)
async def test_subsets_without_learners_are_computed_before_training(
    world: World, strategy: str, asked: dict[str, Any], name: str
) -> None:
    for content in (b"mine", b"own weights"):
        world.upload(content)
    await world.store.remove("r")
    early = await world.ask(run=name, strategy=strategy, **asked)
    assert early.run_id == "young"
    # The ready run has the same answer.
    ready = {"state": RunState.READY, "pretrained_weights": world.upload(THETA_P)}
    await world.store.update("young", lambda run: run.changed(**ready))
    assert await world.ask(run=name, strategy=strategy, **asked) == early
    assert world.compute.kinds == ["SelectSubset"]


async def test_no_subset_is_computed_before_theta_star(world: World) -> None:
    pending = {"state": RunState.PENDING, "inputs": None, "initial_weights": None}
    await world.store.update("young", lambda run: run.changed(**pending))
    with pytest.raises(RunNotReadyError, match="run name-young is pending"):
        await world.ask(run="young", strategy="uniform")


async def test_auto_proxies_include_a_given_theta_star(world: World) -> None:
    theta = world.upload(b"theta*")
    given = {"initialization": InitializationConfig(weights_sha256=theta.sha256)}
    run = made_up_run("given", state=RunState.READY)
    config = run.config.model_copy(update=given)
    weights = world.upload(THETA_P)
    await world.store.add(run.changed(pretrained_weights=weights, config=config))
    for name, initial in (("r", None), ("given", theta)):
        await world.ask(run=name, proxy="auto")
        assert world.compute.jobs[-1].sources.initial == initial
        assert world.compute.jobs[-1].sources.weights == weights


async def test_a_diagnosis_without_a_run_uses_only_the_data(world: World) -> None:
    record = await world.diagnose()
    (job,) = world.compute.jobs
    sources = job.sources
    assert (sources.weights, sources.inputs, sources.trajectories) == (None, None, None)
    assert str(job.proxy) == "auto"
    assert (record.run_id, record.proxy, record.features_sha256) == ("", "auto", "")
    assert (record.num_examples, record.fingerprint) == (500, DATA.fingerprint)
    assert record.manifest["data"] == DATA.facts


async def test_a_diagnosis_is_computed_once(world: World) -> None:
    assert await world.diagnose() == await world.diagnose()
    assert await world.diagnose(run="r") == await world.diagnose(run="latest")
    assert world.compute.kinds == ["DiagnoseData"] * 2


async def test_proxy_features_and_versions_are_part_of_a_diagnosis_s_key(
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


async def test_a_lost_diagnosis_is_computed_again(world: World) -> None:
    record = await world.diagnose()
    world.blobs.path(record.blob).unlink()
    assert (await world.diagnose()).blob == record.blob
    assert world.blobs.has(record.blob)
    assert world.compute.kinds == ["DiagnoseData"] * 2


async def test_a_run_without_usable_learners_cannot_be_diagnosed(world: World) -> None:
    await world.store.add(made_up_run("other", state=RunState.READY).changed(fingerprint="e" * 64))
    with pytest.raises(UnknownRunError, match="'nobody'"):
        await world.diagnose(run="nobody")
    with pytest.raises(RunNotReadyError, match="name-young"):
        await world.diagnose(run="young")
    with pytest.raises(DataError, match=r"fingerprint e+, .* own data"):
        await world.diagnose(run="other")
    with pytest.raises(ProxyError, match="there is no proxy 'ridge:magic'"):
        await world.diagnose(proxy="ridge:magic")
    assert world.compute.jobs == []


@pytest.mark.parametrize("lose", [False, True])
async def test_damaged_or_lost_weights_are_recomputed(world: World, lose: bool) -> None:
    world.damage(THETA_P, lose=lose)
    assert world.blobs.is_whole(await world.answers.weights("r", "theta_p", "caller"))
    world.damage(THETA, lose=lose)
    assert world.blobs.is_whole(await world.answers.weights("young", "theta*", "caller"))
    assert world.compute.kinds == ["MakeSoup", "InitializeWeights"]
    assert world.compute.fingerprints == ["f" * 64] * 2


async def test_weights_are_refused_before_they_exist(world: World) -> None:
    with pytest.raises(RunNotReadyError, match="run name-young is training"):
        await world.answers.weights("young", "theta_p", "caller")
    with pytest.raises(UnknownRunError):
        await world.answers.weights("nobody", "theta*", "caller")


async def test_a_held_run_s_weights_are_served_but_not_recomputed(world: World) -> None:
    for run_id in ("r", "young"):
        world.store.hold(run_id, "run was made on other data.")
    assert await world.answers.weights("r", "theta_p", "caller") == BlobName.of(THETA_P)
    world.damage(THETA_P)
    with pytest.raises(OtherDataError, match=r"theta_p of run name-r.*made on other data"):
        await world.answers.weights("r", "theta_p", "caller")
    with pytest.raises(OtherDataError, match="made on other data"):
        await world.answers.weights("young", "theta_p", "caller")
    assert world.compute.kinds == []


async def test_a_ready_run_is_found_by_id_by_name_and_as_the_latest(database: Database) -> None:
    store = RunStore(database)
    with pytest.raises(UnknownRunError, match="'latest'"):
        find_ready(store, "latest", DATA)
    await store.add(made_up_run("young"))
    # The newest counts where none is ready.
    with pytest.raises(RunNotReadyError, match="run name-young is training"):
        find_ready(store, "latest", DATA)
    for run_id, state in (("r", RunState.READY), ("gone", RunState.CANCELLED)):
        await store.add(made_up_run(run_id, state=state))
    # A newer one of other data does not shadow it.
    await store.add(made_up_run("other", state=RunState.READY).changed(fingerprint="e" * 64))
    store.hold("other", "its data is not served")
    assert {find_ready(store, name, DATA).run_id for name in ("r", "name-r", "latest")} == {"r"}
    await store.add(made_up_run("newer", state=RunState.READY))
    assert find_ready(store, "latest", DATA).run_id == "newer"
    with pytest.raises(DataError, match=r"own data\.$"):
        find_ready(store, "other", DATA)
