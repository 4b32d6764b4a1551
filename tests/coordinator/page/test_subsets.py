"""Subsets, pictures, maps and diagnoses over HTTP, with jobs that the test answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from lipt.common.access.roles import Role
from lipt.common.errors import SignalsError
from lipt.common.states import RunState
from lipt.coordinator.compute.jobs.mapping import MapExamples
from lipt.coordinator.compute.jobs.selecting import SelectSubset
from lipt.coordinator.compute.jobs.showing import ShowExamples, ShownExample
from tests.coordinator.fakes import FakeCompute, FakeWorker, Hanging, pretraining
from tests.coordinator.page.browsing import ServedPage, lines_of, page_served


@pytest.fixture
def compute(tmp_path: Path) -> FakeCompute:
    played = pretraining(tmp_path / "state")
    played.answers[ShowExamples] = lambda job: tuple(
        ShownExample(None, f"<b>{row}") for row in job.ids
    )
    played.answers[MapExamples] = lambda job: tuple((row / 500, 0.5) for row in job.ids)
    return played


@pytest.fixture
async def page(tmp_path: Path, compute: FakeCompute) -> AsyncIterator[ServedPage]:
    async with page_served(tmp_path, compute) as served:
        yield served


@pytest.fixture
async def browser(page: ServedPage) -> AsyncIterator[httpx.AsyncClient]:
    """A trainer's."""
    async with page.signed_in(Role.TRAINER) as browser:
        yield browser


async def ready(page: ServedPage) -> None:
    """A run named "mine" with its soup."""
    async with page.signed_in(Role.ADMIN) as admin:
        await admin.post("/api/runs", json={"name": "mine"})
    run, revision = page.app.store.find("mine"), 0
    worker = FakeWorker(page.app)
    for _ in range(2):
        await worker.hand_in(await worker.take())
    while page.app.store.find("mine").state is not RunState.READY:
        revision = await page.app.store.wait_for_change(run.run_id, revision, timeout_seconds=5.0)


async def chosen(browser: httpx.AsyncClient, **wanted: object) -> dict[str, Any]:
    answer = await browser.post("/api/runs/mine/subsets", json={"strategy": "uniform", **wanted})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = lines_of(answer)[-1]["subset"]
    return found


async def test_subset_is_computed_once_and_shown_with_the_code_that_uses_it(
    page: ServedPage, browser: httpx.AsyncClient, compute: FakeCompute
) -> None:
    await ready(page)
    first = await chosen(browser, fraction=0.1)
    again = await chosen(browser, budget=50)
    assert first == again
    assert compute.kinds.count("SelectSubset") == 1
    assert (first["num_examples"], first["fraction"]) == (50, 0.1)
    # The fake takes the first 50, which are all of the first class.
    assert first["classes"][0] == {"name": "0", "in_data": 50, "in_subset": 50}
    assert first["weights"] == {"min": 1.0, "max": 1.0, "weighted": False}
    assert set(first["most_wanted"]) <= set(range(50))
    assert set(first["least_wanted"]) <= set(range(50, 500))
    assert first["wanted_by"] == {"most": "draw", "least": "draw"}
    assert f"lipt.Client('{page.address}').subset('{first['run_id']}'" in first["code"]


async def test_subsets_are_listed_newest_first_and_found_by_digest(
    page: ServedPage, browser: httpx.AsyncClient
) -> None:
    await ready(page)
    digests = [(await chosen(browser, budget=size))["digest"] for size in (3, 4)]
    listed = (await browser.get("/api/runs/mine/subsets")).json()["subsets"]
    assert [one["digest"] for one in listed] == digests[::-1]
    assert "most_wanted" not in listed[0]
    found = (await browser.get(f"/api/runs/mine/subsets/{digests[0]}")).json()["subset"]
    assert (found["digest"], found["num_examples"]) == (digests[0], 3)
    nothing = await browser.get(f"/api/runs/mine/subsets/{'0' * 64}")
    assert (nothing.status_code, nothing.json()["error"]["reason"]) == (404, "UNKNOWN_BLOB")


async def test_two_subsets_are_laid_side_by_side(
    page: ServedPage, browser: httpx.AsyncClient
) -> None:
    await ready(page)
    digests = [(await chosen(browser, budget=size))["digest"] for size in (60, 10)]
    answer = await browser.post("/api/runs/mine/side-by-side", json={"digests": digests})
    found = answer.json()
    assert (found["both"], found["only"]) == (10, [50, 0])
    assert found["jaccard"] == pytest.approx(10 / 60)
    assert found["by_chance"] == pytest.approx(10)  # 50 x 10 / 50 of the first class
    assert found["union_classes"][1] == {
        "name": "1",
        "in_data": 50,
        "first": 10,
        "second": 0,
        "both": 0,
    }


@pytest.mark.parametrize(
    ("wanted", "status", "reason"),
    [
        ({"strategy": "uniform"}, 400, "INVALID_BUDGET"),
        ({"strategy": "uniform", "fraction": 2.0}, 400, "INVALID_BUDGET"),
        ({"strategy": "uniform", "fraction": 0.1, "budget": 3}, 400, "INVALID_REQUEST"),
        ({"strategy": "uniform", "budget": 10**30}, 400, "INVALID_REQUEST"),
        ({"strategy": "none such", "budget": 3}, 400, "UNKNOWN_NAME"),
        ({"strategy": "x" * 1000, "budget": 3}, 400, "INVALID_REQUEST"),
        ({"strategy": "uniform", "budget": 3, "options": {"a": "b"}}, 400, "INVALID_OPTION"),
        ({"strategy": "uniform", "budget": 3, "options": {"a": 1}}, 400, "INVALID_REQUEST"),
    ],
)
async def test_what_cannot_be_chosen_is_refused_with_its_status(
    page: ServedPage,
    browser: httpx.AsyncClient,
    wanted: dict[str, object],
    status: int,
    reason: str,
) -> None:
    await ready(page)
    answer = await browser.post("/api/runs/mine/subsets", json=wanted)
    assert (answer.status_code, answer.json()["error"]["reason"]) == (status, reason)


async def test_run_that_is_not_ready_says_how_far_it_is(
    page: ServedPage, browser: httpx.AsyncClient
) -> None:
    async with page.signed_in(Role.ADMIN) as admin:
        await admin.post("/api/runs", json={"name": "mine"})
    for path in ("subsets", "map"):
        body = {"strategy": "uniform", "budget": 3} if path == "subsets" else {}
        answer = await browser.post(f"/api/runs/mine/{path}", json=body)
        assert (answer.status_code, answer.json()["error"]["reason"]) == (409, "RUN_NOT_READY")


async def test_reader_that_leaves_takes_its_computation_along(
    page: ServedPage, browser: httpx.AsyncClient, compute: FakeCompute
) -> None:
    await ready(page)
    hanging = Hanging()
    compute.answers[MapExamples] = hanging
    async with browser.stream("POST", "/api/runs/mine/map", json={}) as answer:
        line = await anext(answer.aiter_lines())
        assert "progress" in line
        assert not hanging.given_up
    async with page.browser() as another:
        while not hanging.given_up:
            await another.get("/api/me")


async def test_failure_on_the_way_is_the_last_line(
    page: ServedPage, browser: httpx.AsyncClient, compute: FakeCompute
) -> None:
    await ready(page)
    compute.answers[SelectSubset] = SignalsError("the outputs are not finite. Train anew.")
    answer = await browser.post("/api/runs/mine/subsets", json={"strategy": "uniform", "budget": 3})
    last = lines_of(answer)[-1]
    assert last["error"]["reason"] == "BAD_SIGNALS"


async def test_map_places_examples_and_says_which_are_chosen(
    page: ServedPage, browser: httpx.AsyncClient, compute: FakeCompute
) -> None:
    await ready(page)
    digest = (await chosen(browser, budget=3))["digest"]
    asked = {"digests": [digest]}
    answers = [await browser.post("/api/runs/mine/map", json=asked) for _ in range(2)]
    drawn, kept = (lines_of(answer)[-1]["map"] for answer in answers)
    assert drawn == kept
    assert compute.kinds.count("MapExamples") == 1
    assert drawn["ids"] == list(range(500))  # fewer than a map takes
    assert drawn["x"][250] == 0.5
    assert drawn["labels"][50] == 1
    assert [row for row, is_in in enumerate(drawn["chosen"][0]) if is_in] == [0, 1, 2]
    unknown = await browser.post("/api/runs/mine/map", json={"digests": ["0" * 64]})
    assert unknown.status_code == 404


async def test_examples_are_shown_by_id_with_their_labels(
    page: ServedPage, browser: httpx.AsyncClient
) -> None:
    answer = await browser.post("/api/pictures", json={"ids": [499, 0]})
    assert answer.json()["pictures"] == [
        {"id": 499, "label": 9, "class_name": "9", "png": None, "text": "<b>499"},
        {"id": 0, "label": 0, "class_name": "0", "png": None, "text": "<b>0"},
    ]
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("ids", [[-1], [500], [2**70], list(range(65))])
async def test_examples_that_there_are_not_are_refused(
    browser: httpx.AsyncClient, compute: FakeCompute, ids: list[int]
) -> None:
    answer = await browser.post("/api/pictures", json={"ids": ids})
    assert (answer.status_code, answer.json()["error"]["reason"]) == (400, "INVALID_REQUEST")
    assert "ShowExamples" not in compute.kinds
