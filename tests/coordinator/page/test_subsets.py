import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from lipt.common.access import Role
from lipt.common.blobs.blob import BlobName
from lipt.common.errors import SignalsError
from lipt.common.subsets import Examples
from lipt.common.tensor_files import pack
from lipt.coordinator.compute.jobs.selection import (
    Diagnosed,
    DiagnoseData,
    MapExamples,
    SelectSubset,
    ShowExamples,
    ShownExample,
)
from lipt.coordinator.page import handlers
from lipt.coordinator.page.handlers import examined, rows_to_draw
from lipt.coordinator.state.records import MixtureRecord
from tests.coordinator.fakes import FakeCompute, Hanging, complete, pretraining
from tests.coordinator.page.conftest import LABELS as LABELS_OF_DATA
from tests.coordinator.page.conftest import ServedPage, lines_of, page_served
from tests.coordinator.state.conftest import subset_of
from tests.trainer.made_up import made_up_mixture
from tests.trainer.made_up_diagnosis import diagnosis_file, made_up_findings


@pytest.fixture
def compute(tmp_path: Path) -> FakeCompute:
    played = pretraining(tmp_path / "state")
    played.answers[ShowExamples] = lambda job: tuple(
        ShownExample(None, f"<b>{row}") for row in job.ids
    )
    return played


@pytest.fixture
async def page(tmp_path: Path, compute: FakeCompute) -> AsyncIterator[ServedPage]:
    async with page_served(tmp_path, compute) as served:
        yield served


@pytest.fixture
async def browser(page: ServedPage) -> AsyncIterator[httpx.AsyncClient]:
    async with page.signed_in(Role.TRAINER) as browser:
        yield browser


@pytest.fixture
async def trainer(page: ServedPage, browser: httpx.AsyncClient) -> httpx.AsyncClient:
    """The browser, where there is a run named "mine" with its soup."""
    async with page.signed_in(Role.ADMIN) as admin:
        await admin.post("/api/runs", json={"name": "mine"})
    await complete(page.app, "mine")
    return browser


GET_SUBSET = "/api/SubsetService/GetSubset"
MIXTURES = "/api/runs/mine/mixtures"
MAP, PICTURES = "/api/runs/mine/map", "/api/pictures"
WRONG_IDS = ([-1], [500], [2**70], list(range(65)))
NESTED = json.loads("[" * 150 + "]" * 150)


async def chosen(browser: httpx.AsyncClient, **wanted: object) -> dict[str, Any]:
    wanted = {"run_id": "mine", "strategy": "uniform", **wanted}
    answer = await browser.post(GET_SUBSET, json=wanted)
    assert answer.status_code == 200, answer.text
    digest = lines_of(answer)[-1]["subset"]["digest"]
    found = (await browser.get(f"/api/runs/mine/subsets/{digest}")).json()
    assert found["overlap"] is None
    subset: dict[str, Any] = found["subsets"][0]
    return subset


async def test_subset_is_computed_once_and_shown(
    trainer: httpx.AsyncClient, compute: FakeCompute
) -> None:
    first = await chosen(trainer, fraction=0.1)
    again = await chosen(trainer, budget=50)
    assert first == again
    assert compute.kinds.count("SelectSubset") == 1
    assert (first["num_examples"], first["fraction"]) == (50, 0.1)
    # The fake takes the first 50, which are all of the first class.
    assert first["classes"][0] == {"name": "0", "in_data": 50, "in_subset": 50}
    assert first["weights"] == {"min": 1.0, "max": 1.0, "weighted": False}
    assert set(first["chosen"]) <= set(range(50))
    assert set(first["not_chosen"]) <= set(range(50, 500))


async def test_subsets_are_listed_newest_first_and_found_by_digest(
    trainer: httpx.AsyncClient,
) -> None:
    digests = [(await chosen(trainer, budget=size))["digest"] for size in (3, 4)]
    listed = (await trainer.get("/api/runs/mine/subsets")).json()["subsets"]
    assert [one["digest"] for one in listed] == digests[::-1]
    assert "chosen" not in listed[0]
    (found,) = (await trainer.get(f"/api/runs/mine/subsets/{digests[0]}")).json()["subsets"]
    assert (found["digest"], found["num_examples"]) == (digests[0], 3)
    nothing = await trainer.get(f"/api/runs/mine/subsets/{'0' * 64}")
    assert (nothing.status_code, nothing.json()["error"]["reason"]) == (404, "UNKNOWN_BLOB")


@pytest.mark.parametrize(
    ("path", "wanted", "reason"),
    [
        (GET_SUBSET, {"strategy": "uniform", "fraction": 2.0}, "INVALID_BUDGET"),
        (GET_SUBSET, {"strategy": "uniform", "fraction": 0.1, "budget": 3}, "INVALID_REQUEST"),
        (GET_SUBSET, {"strategy": "uniform", "budget": 10**30}, "INVALID_REQUEST"),
        (GET_SUBSET, {"strategy": "none such", "budget": 3}, "UNKNOWN_NAME"),
        (GET_SUBSET, {"strategy": "x" * 1000, "budget": 3}, "INVALID_REQUEST"),
        (GET_SUBSET, {"strategy": "uniform", "budget": 3, "options": {"a": "b"}}, "INVALID_OPTION"),
        # No such field, none of its type, nested too deep, and no text.
        (GET_SUBSET, {"more": 1}, "INVALID_REQUEST"),
        (GET_SUBSET, {"strategy": 1}, "INVALID_REQUEST"),
        (GET_SUBSET, {"budget": "x"}, "INVALID_REQUEST"),
        (GET_SUBSET, {"options": NESTED}, "INVALID_REQUEST"),
        (GET_SUBSET, {"strategy": "\ud800"}, "INVALID_REQUEST"),
        (MAP, {"digests": []}, "INVALID_REQUEST"),
        (MAP, {"digests": ["0" * 64] * 3}, "INVALID_REQUEST"),
        (MAP, {"digests": [1]}, "INVALID_REQUEST"),
        (MAP, {"digests": ["0" * 64]}, "UNKNOWN_BLOB"),
        *((PICTURES, {"ids": ids}, "INVALID_REQUEST") for ids in WRONG_IDS),
    ],
)
async def test_what_cannot_be_computed_is_refused_with_its_reason(
    trainer: httpx.AsyncClient, compute: FakeCompute, path: str, wanted: Any, reason: str
) -> None:
    computed = list(compute.kinds)
    named = {"run_id": "mine"} if path == GET_SUBSET else {}
    answer = await trainer.post(path, content=json.dumps({**named, **wanted}))
    assert answer.status_code == (404 if reason == "UNKNOWN_BLOB" else 400)
    assert answer.json()["error"]["reason"] == reason
    assert compute.kinds == computed


@pytest.mark.parametrize("job", [SelectSubset, MapExamples])
async def test_a_computation_ends_with_its_only_reader(
    page: ServedPage, trainer: httpx.AsyncClient, compute: FakeCompute, job: type
) -> None:
    digest = (await chosen(trainer, budget=10))["digest"]
    path, wanted = {
        SelectSubset: (GET_SUBSET, {"run_id": "mine", "strategy": "uniform", "budget": 3}),
        MapExamples: (MAP, {"digests": [digest]}),
    }[job]
    hanging = Hanging()
    compute.answers[job] = hanging
    async with trainer.stream("POST", path, json=wanted) as answer:
        assert "progress" in await anext(answer.aiter_lines())
        assert not hanging.given_up
    async with page.browser() as another:
        while not hanging.given_up:
            await another.get("/")


async def test_a_failure_is_the_last_line_of_the_stream(
    trainer: httpx.AsyncClient, compute: FakeCompute
) -> None:
    compute.answers[SelectSubset] = SignalsError("the outputs are not finite. Train anew.")
    wanted = {"run_id": "mine", "strategy": "uniform", "budget": 3}
    answer = await trainer.post(GET_SUBSET, json=wanted)
    last = lines_of(answer)[-1]
    assert last["error"]["reason"] == "BAD_SIGNALS"


async def test_two_subsets_are_compared(trainer: httpx.AsyncClient, compute: FakeCompute) -> None:
    small, large = [await chosen(trainer, budget=budget) for budget in (10, 40)]
    beside = f"/api/runs/mine/subsets/{small['digest']}/beside"
    compared = (await trainer.get(f"{beside}/{large['digest']}")).json()
    assert compared["subsets"] == [small, large]
    # The fake takes the first ones, which are all of the first class of 50.
    assert compared["overlap"] == {"shared": 10, "jaccard": 0.25, "by_chance": 10 * 40 / 50}
    nobodys = await trainer.get(f"{beside}/{'0' * 64}")
    assert (nobodys.status_code, nobodys.json()["error"]["reason"]) == (404, "UNKNOWN_BLOB")


async def test_two_subsets_are_drawn_on_one_map(
    trainer: httpx.AsyncClient, compute: FakeCompute
) -> None:
    digests = [(await chosen(trainer, budget=budget))["digest"] for budget in (10, 40)]
    compute.answers[MapExamples] = lambda job: tuple((row / 500, 0.5) for row in job.ids)
    answer = await trainer.post(MAP, json={"digests": digests})
    drawn = lines_of(answer)[-1]
    assert drawn["ids"] == list(range(500))
    assert drawn["places"][250] == [0.5, 0.5]
    assert drawn["labels"] == LABELS_OF_DATA.tolist()
    assert [sum(taken) for taken in drawn["chosen"]] == [10, 40]


async def test_subsets_of_other_data_are_not_compared(
    page: ServedPage, trainer: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = (await chosen(trainer, budget=10))["digest"]
    monkeypatch.setattr(page.app, "data", replace(page.app.data, fingerprint="other"))
    shown = (await trainer.get(f"/api/runs/mine/subsets/{digest}/beside/{digest}")).json()
    assert shown["overlap"] is None
    assert [len(subset["chosen"]) for subset in shown["subsets"]] == [10, 10]


async def test_the_newest_mixtures_are_listed_without_their_rows(
    page: ServedPage, trainer: httpx.AsyncClient
) -> None:
    assert (await trainer.get(MIXTURES)).json() == {"mixtures": []}
    run, file = page.app.store.find("mine"), made_up_mixture().to_json()
    blobs = {
        21: page.app.blobs.put_bytes(file),
        20: BlobName.of(b"lost"),
        19: page.app.blobs.put_bytes(b"[]"),
        18: replace(page.app.blobs.put_bytes(file + b" "), size_bytes=2**26),
    }
    lost = BlobName.of(b"another")
    for place in range(22):
        record = MixtureRecord(
            key=str(place),
            run_id=run.run_id,
            fingerprint="f",
            target_sha256=f"{place:064}",
            manifest={},
            blob=blobs.get(place, lost),
            created_at=float(place),
        )
        await page.app.database.save(record)
    listed = (await trainer.get(MIXTURES)).json()["mixtures"]
    assert [one["created_at"] for one in listed] == [*range(21, 1, -1)]
    assert [one["result"] is None for one in listed] == [False] + [True] * 19
    assert listed[0] == {
        "target_sha256": f"{21:064}",
        "created_at": 21.0,
        "result": {
            "shares": [
                {"source": "<b>day", "share": 0.75, "interval": [0.5, 1.0]},
                {"source": "night", "share": 0.25, "interval": [0.0, 0.5]},
            ],
            "losses": {"merged": 0.225, "uniform": 0.387, "size": 0.401},
            "target_examples": 60,
            "verdict": "Better than equal shares.",
            "findings": ["night has no example of the class <i>."],
        },
    }
    nobodys = await trainer.get("/api/runs/other/mixtures")
    assert (nobodys.status_code, nobodys.json()["error"]["reason"]) == (404, "UNKNOWN_RUN")


async def test_diagnosis_is_computed_and_shown(
    page: ServedPage, browser: httpx.AsyncClient, compute: FakeCompute
) -> None:
    findings = made_up_findings()
    compute.answers[DiagnoseData] = Diagnosed(page.app.blobs.put_bytes(diagnosis_file()), "cpu")
    answer = await browser.post("/api/DiagnosisService/Diagnose", json={})
    sha256 = lines_of(answer)[-1]["diagnosis"]["file"]["sha256"]
    shown = (await browser.get(f"/api/diagnoses/{sha256}")).json()
    assert shown == findings | {"target_kind": "class", "worst_fitting": []}
    # Blobs of other kinds, whole diagnoses and hostile ones among them, are no business of it.
    uploads = (
        diagnosis_file(findings | {"class_names": ["secret", "dog"]}),
        b"junk",
        pack({}, {"diagnosis": "[" * 100_000}),
    )
    others = [page.app.blobs.put_bytes(content).sha256 for content in uploads]
    for digest in ("0" * 64, "0", "%00", *others):
        refused = await browser.get(f"/api/diagnoses/{digest}")
        assert (refused.status_code, refused.json()["error"]["reason"]) == (404, "UNKNOWN_BLOB")


async def test_examples_are_shown_by_id_with_their_labels(
    page: ServedPage, browser: httpx.AsyncClient
) -> None:
    answer = await browser.post(PICTURES, json={"ids": [499, 0]})
    assert answer.json()["pictures"] == [
        {"id": 499, "class_name": "9", "png": None, "text": "<b>499"},
        {"id": 0, "class_name": "0", "png": None, "text": "<b>0"},
    ]
    assert answer.headers["content-type"] == "application/json"


LABELS = np.array([0, 0, 0, 1, 1, 1] * 20)
NAMES = ("</script>", "b")


def examples(*weights: float) -> Examples:
    return Examples(np.array([1, 3, 5]), np.array(weights, np.float32))


def test_the_heaviest_examples_are_shown_first() -> None:
    found = examined(subset_of("r", "k"), examples(0.5, 4.0, 2.0), LABELS, NAMES, ())
    assert found["chosen"] == [3, 5, 1]
    assert found["weights"] == {"min": 0.5, "max": 4.0, "weighted": True}
    assert found["classes"] == [
        {"name": "</script>", "in_data": 60, "in_subset": 1},
        {"name": "b", "in_data": 60, "in_subset": 2},
    ]


def test_a_map_has_a_sample_and_some_of_every_subset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "_MAP_AT_RANDOM", 10)
    monkeypatch.setattr(handlers, "_MAP_OF_SUBSETS", 8)
    first, second = np.arange(1000, 2000), np.arange(5000, 5002)
    rows = rows_to_draw(100_000, [first, second], seed=0)
    assert np.array_equal(rows, np.unique(rows))
    assert len(rows) <= 10 + 2 * 4
    assert len(np.intersect1d(rows, first)) >= 4
    assert np.isin(second, rows).all()
    assert np.array_equal(rows, rows_to_draw(100_000, [first, second], seed=0))
    assert not np.array_equal(rows, rows_to_draw(100_000, [first, second], seed=1))
