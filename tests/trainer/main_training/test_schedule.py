from __future__ import annotations

import pytest

from lipt.trainer.main_training import Schedule


@pytest.mark.parametrize(
    ("evaluations", "due"),
    [(1, [12]), (2, [6, 12]), (3, [4, 8, 12]), (0, [12]), (50, list(range(1, 13)))],
)
def test_evaluations_are_spread_evenly_and_the_last_step_is_one(
    evaluations: int, due: list[int]
) -> None:
    schedule = Schedule(evaluations=evaluations)
    found = [step for step in range(1, 13) if schedule.evaluation_due(step - 1, step, 12)]
    assert found == due


def test_an_epoch_over_several_evaluations_has_one() -> None:
    assert Schedule(evaluations=10).evaluation_due(0, 50, 100)
