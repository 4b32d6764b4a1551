from __future__ import annotations

from math import inf

import pytest

from lipt.trainer.comparison.intervals import (
    Difference,
    averaged,
    mean_and_deviation,
    num_needed,
    paired_difference,
)

pytestmark = pytest.mark.slow


def seeds(*values: float) -> dict[tuple[int, int], float]:
    """One training for each pipeline seed."""
    return {(seed, 0): value for seed, value in enumerate(values)}


def difference(*values: float) -> Difference:
    """Of these, seed by seed."""
    found = paired_difference(seeds(*values), seeds(*(0.0 for _ in values)))
    assert found is not None
    return found


def test_the_interval_is_students() -> None:
    # Differences 1, 2, 3: mean 2, std 1, standard error 1/sqrt(3), t(0.975, 2) = 4.30265.
    found = paired_difference(seeds(2, 4, 6), seeds(1, 2, 3))
    assert found is not None
    assert found.mean == pytest.approx(2.0)
    assert found.low == pytest.approx(2 - 4.30265 / 3**0.5, abs=1e-4)
    assert found.high == pytest.approx(2 + 4.30265 / 3**0.5, abs=1e-4)
    assert (found.num_units, found.unit, found.basis) == (3, "seeds", "3 seeds")


def test_only_trainings_that_both_have_are_paired() -> None:
    found = paired_difference({(0, 0): 1.0, (5, 0): 9.0, (0, 1): 7.0}, {(0, 0): 0.5, (6, 0): 3.0})
    assert found == Difference(0.5, -inf, inf)
    assert paired_difference(seeds(1.0), {}) is None


def test_of_several_pipeline_seeds_each_is_one_unit_with_its_trainings_averaged() -> None:
    # Differences 1 and 3 of seed 0, 3 and 5 of seed 1: the units are 2 and 4, their mean is 3,
    # their standard error 1, and t(0.975, 1) = 12.7062.
    found = paired_difference(
        {(0, 0): 2.0, (0, 1): 4.0, (1, 0): 4.0, (1, 1): 6.0},
        {(0, 0): 1.0, (0, 1): 1.0, (1, 0): 1.0, (1, 1): 1.0},
    )
    assert found is not None
    assert (found.mean, found.num_units, found.unit) == (3.0, 2, "seeds")
    assert found.high == pytest.approx(3 + 12.7062, abs=1e-4)


def test_of_one_pipeline_seed_the_trainings_are_the_units() -> None:
    values = {(4, 0): 1.0, (4, 1): 2.0, (4, 2): 3.0}
    found = paired_difference(values, dict.fromkeys(values, 0.0))
    assert found is not None
    assert (found.num_units, found.unit) == (3, "trainings")
    assert found.basis == "3 trainings of one seed"
    assert mean_and_deviation(values) == (2.0, 1.0)


def test_the_deviation_is_over_the_units() -> None:
    values = {(0, 0): 1.0, (0, 1): 3.0, (1, 0): 4.0, (1, 1): 4.0}
    assert averaged(values) == ([2.0, 4.0], "seeds")
    assert mean_and_deviation(values) == (3.0, pytest.approx(2**0.5))
    assert mean_and_deviation({(0, 0): 5.0}) == (5.0, 0.0)


def test_one_pair_tells_nothing() -> None:
    found = difference(0.8)
    assert (found.low, found.high, found.bounded) == (-inf, inf, False)
    assert (found.basis, found.num_needed) == ("one seed", None)


@pytest.mark.parametrize(
    ("deviation", "needed"),
    [
        # t(0.975, 6) / sqrt(7) = 2.4469 / 2.6458 = 0.925, and with 6: 2.5706 / 2.4495 = 1.049.
        (0.01, 7),
        # 2 t(0.975, 17) / sqrt(18) = 4.2196 / 4.2426 = 0.995, with 17: 4.2398 / 4.1231 = 1.028.
        (0.02, 18),
        # t(0.975, 1) / sqrt(2) = 8.985: a tenth of a point is told by two.
        (0.001, 2),
        (0.0, 2),
    ],
)
def test_as_many_are_needed_as_make_the_interval_tell_a_point(
    deviation: float, needed: int
) -> None:
    assert num_needed(deviation) == needed


def test_a_coarser_difference_needs_fewer() -> None:
    # 1 of 2 points, as in the first row above.
    assert num_needed(0.02, resolution=0.02) == 7


def test_what_is_undecided_says_how_many_are_needed() -> None:
    # Mean 1 point, deviation 1 point: 4.30265 / sqrt(3) = 2.5 points to either side.
    assert difference(0.00, 0.01, 0.02).num_needed == 7


@pytest.mark.parametrize(
    "values",
    [
        (0.06, 0.07, 0.08),  # above zero
        (-0.06, -0.07, -0.08),  # below
        (-0.001, 0.0, 0.001),  # within a quarter of a point of zero
    ],
)
def test_what_is_decided_needs_no_more(values: tuple[float, ...]) -> None:
    assert difference(*values).num_needed is None
