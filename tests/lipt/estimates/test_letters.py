from __future__ import annotations

import pytest

from lipt.core.selection.registry import STRATEGIES
from lipt.estimates.letters import cost_in_numbers

LETTERS = {"N": 8.0, "C": 3.0, "d": 5.0, "k": 2.0, "r": 10.0}


@pytest.mark.parametrize(
    ("cost", "number"),
    [
        ("N", 8),
        ("N C", 24),
        ("N (C + d)", 64),
        ("N^2 (C + d)", 512),
        ("k N (C + d + k)", 160),
        ("r N C d", 1200),
        ("N (C + log N)", 48),
        ("N (C + d) + N^2 d / C", 64 + 64 * 5 / 3),
        # Nobody knows how many draws there are.
        ("N (d + m), m draws", 48),
    ],
)
def test_a_cost_is_read_as_it_is_written(cost: str, number: float) -> None:
    assert cost_in_numbers(cost, LETTERS, {}) == pytest.approx(number)


def test_the_part_of_an_options_value_counts_where_it_is_asked_for() -> None:
    cost = "N d; diverse: N^2 d"
    assert cost_in_numbers(cost, LETTERS, {"subset": "easy"}) == 40
    assert cost_in_numbers(cost, LETTERS, {"subset": "diverse"}) == 320


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_declared_cost_grows_with_the_data(name: str) -> None:
    cost = STRATEGIES[name].cost
    one, two = (cost_in_numbers(cost, LETTERS | {"N": number}, {}) for number in (100.0, 200.0))
    assert two > one > 1
