"""Pages of runs, newest first: none twice and none left out, whatever happens in between."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipt.common.errors import InvalidRequestError
from lipt.coordinator.runs.listing import page_of
from lipt.coordinator.state.records import RunSummary
from tests.coordinator.made_up_runs import made_up_run

RUN = RunSummary.of(made_up_run())


def runs_at(times: list[float]) -> list[RunSummary]:
    return [replace(RUN, run_id=f"r{place}", created_at=at) for place, at in enumerate(times)]


def ids(runs: object) -> list[str]:
    return [run.run_id for run in runs]  # type: ignore[attr-defined]


@given(
    times=st.lists(st.floats(1.0, 2e9), max_size=12),
    size=st.integers(1, 5),
)
def test_pages_follow_each_other_to_the_oldest(times: list[float], size: int) -> None:
    runs, seen, token = runs_at(times), list[RunSummary](), ""
    while True:
        page, token = page_of(runs, token, size)
        assert len(page) <= size
        seen.extend(page)
        if not token:
            break
    expected = sorted(runs, key=lambda run: (run.created_at, run.run_id), reverse=True)
    assert seen == expected


def test_what_starts_or_goes_between_two_pages_moves_nothing() -> None:
    runs = runs_at([1.0, 2.0, 3.0, 4.0, 5.0])
    page, token = page_of(runs, "", 2)
    assert ids(page) == ["r4", "r3"]
    # A newer one starts; the last that was shown is removed, and the first.
    later = [*runs[:3], replace(RUN, run_id="new", created_at=6.0)]
    page, token = page_of(later, token, 2)
    assert ids(page) == ["r2", "r1"]
    assert ids(page_of(later, token, 2)[0]) == ["r0"]


def test_the_last_page_has_no_token() -> None:
    assert page_of(runs_at([1.0, 2.0]), "", 2)[1] == ""
    assert page_of([], "", 2) == ([], "")


@pytest.mark.parametrize(
    "token", ["1", "-1", "nan/r", "inf/r", "0x1.8p+1", "0x1.8p+1/", "0x1.8p+9999/r", "x" * 9999]
)
def test_a_token_that_no_page_had_is_refused(token: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"page_token '.{0,64}' is none"):
        page_of(runs_at([1.0]), token, 2)
