"""Choice: a dearer proxy is taken where it gains a quarter of a point per further pass."""

from __future__ import annotations

import pytest

from lipt.core.proxies.choice import Tried, candidates, choose, passes_of
from lipt.core.proxies.proxy import Kind

PATCHES, SOUP, LEARNERS = (Kind.PATCHES,), (Kind.SOUP,), (Kind.LEARNERS,)
BOTH = (Kind.PATCHES, Kind.LEARNERS)


def test_each_kind_is_tried_alone_and_the_dear_ones_beside_patches() -> None:
    assert candidates([Kind.LEARNERS, Kind.SOUP, Kind.PATCHES]) == [PATCHES, SOUP, LEARNERS, BOTH]
    assert candidates([Kind.SOUP]) == [SOUP]
    every = candidates(set(Kind) - {Kind.COLUMNS})
    assert len(every) == len(set(every)) == 10
    assert (Kind.USER, Kind.PATCHES) in every
    assert (Kind.PATCHES, Kind.BACKBONE) in every
    # Of examples that are no images, their values take that place.
    beside = [kinds for kinds in candidates({Kind.COLUMNS, Kind.LEARNERS}) if len(kinds) > 1]
    assert beside == [(Kind.COLUMNS, Kind.LEARNERS)]
    assert (Kind.PATCHES, Kind.INITIAL) in every


def test_learners_cost_a_pass_each() -> None:
    assert passes_of(BOTH, num_learners=7) == 8
    assert passes_of((Kind.USER,), num_learners=7) == 0


@pytest.mark.parametrize(("accuracy", "chosen"), [(0.624, PATCHES), (0.626, BOTH)])
def test_ten_further_passes_have_to_gain_two_and_a_half_points(
    accuracy: float, chosen: tuple[Kind, ...]
) -> None:
    tried = [Tried(PATCHES, 0.6, 1), Tried(BOTH, accuracy, 11)]
    assert choose(tried).features == chosen


def test_each_gain_is_counted_from_the_last_one_taken() -> None:
    # From 0.50 the learners would pay; from the patches' 0.60 they do not.
    tried = [Tried(SOUP, 0.5, 1), Tried(LEARNERS, 0.6, 10), Tried(PATCHES, 0.6, 1)]
    assert choose(tried).features == PATCHES


def test_a_dearer_one_that_is_worse_is_passed_over() -> None:
    tried = [Tried(PATCHES, 0.5, 1), Tried(LEARNERS, 0.4, 2), Tried(BOTH, 0.6, 3)]
    assert choose(tried).features == BOTH


def test_facts_are_plain_values() -> None:
    assert Tried(BOTH, 0.5, 3).facts == {
        "features": "patches+learners",
        "accuracy": 0.5,
        "passes": 3,
    }
