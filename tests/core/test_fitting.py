"""Defaults that shrink to a small data set."""

from __future__ import annotations

from typing import Any

import pytest

from lipt.common.config.run_config import LearnersConfig
from lipt.core.fitting import fit_defaults

DEFAULTS = LearnersConfig()  # 10 learners x 1 minibatch x 256 examples


def fitted(num_train: int, **asked: Any) -> tuple[int, int, int, int]:
    learners = fit_defaults(LearnersConfig(**asked), num_train, asked=asked).learners
    return (
        learners.num_learners,
        learners.num_minibatches,
        learners.batch_size,
        learners.min_learners,
    )


@pytest.mark.parametrize("num_train", [2560, 2561, 50_000])
def test_defaults_that_fit_stay_as_they_are_and_nothing_is_said(num_train: int) -> None:
    found = fit_defaults(DEFAULTS, num_train, asked=())
    assert found.learners is DEFAULTS
    assert found.said == ""


@pytest.mark.parametrize(
    ("num_train", "expected"),
    [
        (2559, (10, 1, 255, 1)),
        (1597, (10, 1, 159, 1)),  # the digits that the README's data has
        (160, (10, 1, 16, 1)),
        (159, (9, 1, 16, 1)),  # a batch has 16: fewer learners come first
        (31, (1, 1, 16, 1)),
        (15, (1, 1, 15, 1)),  # all that there is
        (1, (1, 1, 1, 1)),
    ],
)
def test_the_batch_shrinks_first_and_then_there_are_fewer_learners(
    num_train: int, expected: tuple[int, int, int, int]
) -> None:
    assert fitted(num_train) == expected


@pytest.mark.parametrize(
    ("num_train", "asked", "expected"),
    [
        (1597, {"batch_size": 256}, (6, 1, 256, 1)),  # 1597 // 256
        (1597, {"num_learners": 40}, (40, 1, 39, 1)),
        (1597, {"num_minibatches": 20}, (4, 20, 16, 1)),  # 1597 // (20 x 16)
        (300, {"num_learners": 10, "batch_size": 32}, (10, 1, 32, 1)),  # too large: refused later
        (100, {"num_learners": 100}, (100, 1, 16, 1)),
        (100, {"min_learners": 8}, (8, 1, 16, 8)),
    ],
)
def test_what_was_asked_for_is_left_alone(
    num_train: int, asked: dict[str, int], expected: tuple[int, int, int, int]
) -> None:
    assert fitted(num_train, **asked) == expected


def test_minibatches_that_an_operator_has_set_shrink_last() -> None:
    operators = LearnersConfig(num_minibatches=4, min_learners=5)
    found = fit_defaults(operators, 50, asked=()).learners
    sizes = (found.num_learners, found.num_minibatches, found.batch_size, found.min_learners)
    assert sizes == (1, 3, 16, 1)


def test_what_was_lowered_is_said_with_the_figures() -> None:
    assert fit_defaults(DEFAULTS, 1597, asked=()).said == (
        "10 learners x 1 minibatches x 256 examples = 2560 are more than the 1597 of the training "
        "split, so defaults were lowered to fit: learners.batch_size 159 in place of 256"
    )
    assert fit_defaults(DEFAULTS, 100, asked=("seed",)).said.endswith(
        "learners.num_learners 6 in place of 10, learners.batch_size 16 in place of 256"
    )
