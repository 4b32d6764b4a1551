from __future__ import annotations

import pytest

from lipt.trainer.main_training import Schedule, evenly
from lipt.trainer.main_training.schedule import due


def found(shares: tuple[float, ...], *, num_steps: int, epoch_steps: int = 1) -> list[int]:
    ends = range(epoch_steps, num_steps + 1, epoch_steps)
    return [step for step in ends if due(shares, step, step + epoch_steps, num_steps)]


@pytest.mark.parametrize(
    ("times", "expected"),
    [(1, [12]), (2, [6, 12]), (3, [4, 8, 12]), (0, [12]), (50, list(range(1, 13)))],
)
def test_accuracies_are_spread_evenly_and_the_last_step_has_one(
    times: int, expected: list[int]
) -> None:
    assert found(evenly(times), num_steps=12) == expected


@pytest.mark.parametrize(
    ("epoch_steps", "expected"),
    [
        (10, [80, 100]),  # an epoch ends right there
        (20, [80, 100]),
        (25, [75, 100]),  # the last one that ends before
        (50, [50, 100]),
        (100, [100]),  # none does
    ],
)
def test_a_share_within_an_epoch_is_looked_at_before_it(
    epoch_steps: int, expected: list[int]
) -> None:
    assert found((0.8,), num_steps=100, epoch_steps=epoch_steps) == expected


def test_an_epoch_over_several_shares_has_one() -> None:
    assert found(evenly(10), num_steps=100, epoch_steps=50) == [50, 100]


def test_a_share_that_rounding_has_made_a_little_less_is_where_it_was_meant() -> None:
    assert 1 / 49 * 49 < 1
    assert found((1 / 49,), num_steps=49) == [1, 49]


def test_within_epochs_the_test_set_is_looked_at_on_the_very_steps() -> None:
    schedule = Schedule(test_at=(0.25, 0.5, 1.0), within_epochs=True)
    assert schedule.test_steps(10) == {2, 5}  # the last step has a look of its own
