"""A learner's losses are kept at few steps, however many were reported."""

import itertools

from lipt.coordinator.runs.transitions import MAX_LOSSES, LossCurve


def curve_of(*steps: int, num_steps: int) -> LossCurve:
    curve = LossCurve()
    for step in steps:
        curve = curve.after(step, 1 / step, num_steps=num_steps)
    return curve


def test_few_steps_are_all_kept() -> None:
    assert curve_of(1, 2, 2, 5, num_steps=10) == LossCurve((1.0, 0.5, 0.2), (1, 2, 5))


def test_many_steps_are_spaced_evenly_and_end_at_the_newest() -> None:
    for last in (1, 17, 999, 1000):
        steps = curve_of(*range(1, last + 1), num_steps=1000).steps
        assert steps[0] == 1
        assert steps[-1] == last
        assert len(steps) <= MAX_LOSSES
        gaps = [after - before for before, after in itertools.pairwise(steps[:-1])]
        assert all(gap == 56 for gap in gaps)
    assert len(steps) == 19


def test_another_worker_begins_anew_and_an_impossible_step_is_none() -> None:
    first = curve_of(3, 7, num_steps=10)
    assert first.after(2, 4.0, num_steps=10) == LossCurve((4.0,), (2,))
    assert first.after(0, 0.0, num_steps=10) == LossCurve()
    assert first.after(11, 4.0, num_steps=10) == first
    # As many digits as a chart shows.
    assert LossCurve().after(1, 0.123456, num_steps=10).losses == (0.1235,)
