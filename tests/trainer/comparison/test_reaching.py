from __future__ import annotations

import pytest

from lipt.trainer.comparison.reaching import Reach, Reached, course, reach
from lipt.trainer.comparison.trial import Trial
from lipt.trainer.main_training.records import Look
from tests.trainer.made_up import made_up_trial


def trials(*accuracies: tuple[float, float], before: float = 0.0) -> list[Trial]:
    """A seed each, looked at after 10 steps in 1 s, and after 20 in 2 s."""
    return [
        made_up_trial(
            seed=seed,
            pretraining_seconds=before,
            selection_seconds=0.0,
            looks=(Look(10, 1.0, first), Look(20, 2.0, second)),
        )
        for seed, (first, second) in enumerate(accuracies)
    ]


def found(ours: list[Trial], everything: list[Trial], redrawn: list[Trial]) -> Reach:
    value = reach(ours, 0.5, everything, redrawn, of_random=True)
    assert value is not None
    return value


SOON, LATE, NEVER = (0.5, 0.6), (0.4, 0.5), (0.3, 0.4)


def test_steps_and_seconds_are_means_with_choosing_included() -> None:
    value = found(trials(SOON, LATE, before=5.0), trials(SOON, SOON), trials(LATE, LATE))
    assert value.own == Reached(num_trainings=2, num_reached=2, steps=15, seconds=6.5)
    assert value.everything == Reached(2, 2, steps=10, seconds=1)
    assert value.redrawn == Reached(2, 2, steps=20, seconds=2)
    assert value.own.always


def test_seconds_are_compared_seed_by_seed() -> None:
    value = found(trials(SOON, LATE, before=5.0), trials(SOON, SOON), trials(LATE, SOON))
    assert value.to_everything is not None
    # 6 - 1 and 7 - 1; 6 - 2 and 7 - 1.
    assert value.to_everything.mean == 5.5
    # Their deviation is sqrt(0.5), the standard error 0.5, and t(0.975, 1) = 12.7062.
    assert value.to_everything.low == pytest.approx(5.5 - 12.7062 / 2, abs=1e-4)
    assert value.to_everything.num_needed is None  # which is of points
    assert value.to_redrawn is not None
    assert value.to_redrawn.mean == 5.0


def test_those_that_never_get_there_are_counted_and_not_averaged() -> None:
    value = found(trials(SOON, NEVER), trials(SOON, SOON), trials(NEVER, NEVER))
    assert value.own == Reached(num_trainings=2, num_reached=1, steps=10, seconds=1)
    assert not value.own.always
    assert value.redrawn == Reached(num_trainings=2, num_reached=0, steps=None, seconds=None)
    assert value.to_everything is None
    assert value.to_redrawn is None


def test_without_looks_on_the_way_nothing_is_known() -> None:
    old = [made_up_trial()]
    assert reach(old, 0.5, [], [], of_random=True) is None
    value = found(trials(SOON), old, [])
    assert value.everything is None
    assert value.to_everything is None


def test_the_course_is_the_mean_at_each_look() -> None:
    assert course(trials((0.25, 0.5), (0.5, 0.75), before=5.0)) == (
        Look(10, 6.0, 0.375),
        Look(20, 7.0, 0.625),
    )
    assert course([made_up_trial()]) == ()


def test_trainings_of_other_steps_have_no_course_in_common() -> None:
    other = made_up_trial(seed=1, looks=(Look(7, 1.0, 0.5),))
    assert course([*trials(SOON), other]) == ()
