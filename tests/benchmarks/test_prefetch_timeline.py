from __future__ import annotations

import pytest

from benchmarks import prefetch_timeline
from benchmarks.prefetch_timeline import Turn, rows, timelines
from lipt.core.learner.minibatches import BatchTimes

pytestmark = pytest.mark.slow


def made(*, ahead: bool) -> Turn:
    """Two minibatches, each decoded in 2 seconds, augmented in 1, and trained on in 4."""
    first = BatchTimes(10.0, 12.0, 13.0, asked=10.0, taken=13.0)
    if ahead:
        second = BatchTimes(13.0, 15.0, 16.0, asked=17.0, taken=17.0)
        return Turn(10.0, 11.0, 6.0, batches=[(first, 17.0), (second, 21.0)])
    second = BatchTimes(17.0, 19.0, 20.0, asked=17.0, taken=20.0)
    return Turn(10.0, 14.0, 6.0, batches=[(first, 17.0), (second, 24.0)])


def test_timelines_have_all_parts_at_their_times(monkeypatch: pytest.MonkeyPatch) -> None:
    # As many columns as seconds.
    monkeypatch.setattr(prefetch_timeline, "_COLUMNS", 14)
    turns = {"in turn": made(ahead=False), "ahead": made(ahead=True)}
    assert timelines(turns, 2).splitlines() == [
        "a column is 1000.0 ms",
        "   in turn dda    dda    ",
        "    device ...0000...1111",
        "     ahead ddadda        ",
        "    device ...00001111   ",
    ]


def test_figures_are_those_of_the_turns() -> None:
    turns = {"in turn": [made(ahead=False)], "ahead": [made(ahead=True)]}
    assert list(rows(turns)) == [
        ["in turn", "14.000", "1.00", "3.000", "3.000", "6.000"],
        ["ahead", "11.000", "0.79", "3.000", "0.000", "6.000"],
    ]
