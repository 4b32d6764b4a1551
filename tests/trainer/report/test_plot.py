from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipt.trainer.comparison.verdict import Difference, Outcome
from lipt.trainer.report.plot import (
    HEIGHT,
    WIDTH,
    Strip,
    accuracy_against_cost,
    interval_strips,
    nice_ticks,
)
from tests.trainer.made_up import made_up_outcome


def outcome(strategy: str, accuracy: float, seconds: float, fraction: float = 0.1) -> Outcome:
    random = strategy == "uniform"
    return made_up_outcome(
        strategy=strategy,
        fraction=fraction,
        mean_accuracy=accuracy,
        difference=None if random else Difference(0.0, -0.1, 0.1),
        total_seconds=seconds,
    )


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (0.71, 0.93, [0.7, 0.75, 0.8, 0.85, 0.9, 0.95]),
        (3, 3, [3, 4]),
        (0, 0, [0, 0.2]),
    ],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert nice_ticks(low, high) == pytest.approx(expected)


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_ticks_span_the_values_and_are_few(one: float, other: float) -> None:
    low, high = sorted((one, other))
    ticks = nice_ticks(low, high)
    slack = 1e-6 * max(1.0, high)
    assert ticks[0] <= low + slack
    assert ticks[-1] >= high - slack
    assert 2 <= len(ticks) <= 8


def test_points_lie_inside_with_higher_accuracy_further_up() -> None:
    rows = [outcome("uniform", 0.7, 10), outcome("craig", 0.8, 20), outcome("craig", 0.9, 40, 0.3)]
    plot = accuracy_against_cost(rows)
    assert [(series.name, series.random) for series in plot.series] == [
        ("uniform", True),
        ("craig", False),
    ]
    points = [point for series in plot.series for point in series.points]
    assert [point.y for point in points] == sorted((point.y for point in points), reverse=True)
    assert [point.x for point in points] == sorted(point.x for point in points)
    assert all(0 <= point.x <= WIDTH and 0 <= point.y <= HEIGHT for point in points)
    assert all(point.high < point.y < point.low for point in points)


def test_intervals_lie_on_one_scale_that_holds_zero() -> None:
    craig, grand = outcome("craig", 0.8, 1), outcome("grand", 0.5, 1)
    rows = [
        outcome("uniform", 0.7, 1),
        replace(craig, difference=Difference(0.2, 0.1, 0.3)),
        replace(grand, difference=Difference(-0.05, -0.1, 0.0)),
    ]
    random, above, below = interval_strips(rows)
    assert random is None
    # From -0.1 to 0.3: zero is at a quarter.
    assert above is not None
    assert (above.zero, above.low, above.mean, above.high) == pytest.approx((25, 50, 75, 100))
    assert below is not None
    assert (below.zero, below.low, below.mean, below.high) == pytest.approx((25, 0, 12.5, 25))


def test_one_seed_has_no_interval_to_draw() -> None:
    alone = replace(outcome("craig", 0.8, 1), difference=Difference(0.1, -inf, inf))
    assert interval_strips([alone]) == [None]


def test_intervals_of_no_width_are_drawn_at_zero() -> None:
    flat = replace(outcome("craig", 0.8, 1), difference=Difference(0.0, 0.0, 0.0))
    assert interval_strips([flat]) == [Strip(0.0, 0.0, 0.0, 0.0)]
