from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from lipt.trainer.main_training import Recipe, evenly
from lipt.trainer.main_training.recipe import marks


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


@pytest.mark.parametrize(
    ("shares", "num_steps", "expected"),
    [
        (evenly(1), 12, {12}),
        (evenly(3), 12, {4, 8, 12}),
        ((0.25, 0.5, 1.0), 10, {2, 5, 10}),
        ((1 / 49,), 49, {1, 49}),  # 1 / 49 * 49 < 1
        (None, 12, set()),
    ],
)
def test_accuracies_are_taken_at_the_steps_of_their_shares(
    shares: tuple[float, ...] | None, num_steps: int, expected: set[int]
) -> None:
    assert marks(shares, num_steps) == expected
