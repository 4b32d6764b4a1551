from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from lipt.trainer.main_training import Recipe, Schedule, evenly
from lipt.trainer.main_training.recipe import due


@pytest.mark.parametrize(
    ("num_examples", "sizes"),
    [(256, [256]), (257, [257]), (258, [256, 2]), (513, [256, 257]), (1, [1])],
    ids=str,
)
def test_a_last_smaller_batch_counts_unless_it_is_one_example(
    num_examples: int, sizes: list[int]
) -> None:
    recipe = Recipe(epochs=3)
    batches = recipe.batches(torch.arange(num_examples))
    assert [len(batch) for batch in batches] == sizes
    assert torch.cat(batches).tolist() == list(range(num_examples))
    assert recipe.num_steps(num_examples) == 3 * len(sizes)


@pytest.mark.parametrize(
    ("num_examples", "sizes"),
    [(256, [256]), (257, [256]), (511, [256]), (512, [256, 256]), (3, [3])],
    ids=str,
)
def test_a_smaller_batch_is_left_out_where_that_is_asked_for(
    num_examples: int, sizes: list[int]
) -> None:
    recipe = Recipe(epochs=3, drop_last=True)
    batches = recipe.batches(torch.arange(num_examples))
    assert [len(batch) for batch in batches] == sizes
    assert recipe.num_steps(num_examples) == 3 * len(sizes)


def test_cosine_falls_from_the_whole_to_half_to_nothing() -> None:
    recipe = Recipe(learning_rate=0.2)
    assert recipe.learning_rate_at(0, 100) == pytest.approx(0.2)
    assert recipe.learning_rate_at(50, 100) == pytest.approx(0.1)
    assert recipe.learning_rate_at(100, 100) == pytest.approx(0.0)


def test_warm_up_rises_linearly_before_the_cosine() -> None:
    recipe = Recipe(learning_rate=0.4, warmup_steps=4)
    rates = [recipe.learning_rate_at(step, 14) for step in range(5)]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])
    assert recipe.learning_rate_at(9, 14) == pytest.approx(0.2)  # halfway down


@pytest.mark.parametrize(
    "wrong",
    [{"epochs": 0}, {"steps": 0}, {"learning_rate": 0}, {"momentum": 1}, {"lr": 0.1}],
    ids=str,
)
def test_what_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        Recipe.model_validate(wrong)


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


def test_a_share_that_rounding_has_made_a_little_less_is_where_it_was_meant() -> None:
    assert 1 / 49 * 49 < 1
    assert found((1 / 49,), num_steps=49) == [1, 49]


def test_within_epochs_the_test_set_is_looked_at_on_the_very_steps() -> None:
    schedule = Schedule(test_at=(0.25, 0.5, 1.0), within_epochs=True)
    assert schedule.test_steps(10) == {2, 5}  # the last step has a look of its own
