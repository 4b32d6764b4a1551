import math
from collections.abc import Mapping

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from lipt.common.config.run_config import PruningMethod
from lipt.common.errors import ConfigError
from lipt.core.pretraining.pruning import (
    is_pruned_from,
    masks_of_largest,
    prunable_parameters,
    prune,
)

WEIGHTS = {"conv": torch.tensor([[-4.0, 1.0], [0.5, 3.0]]), "head": torch.tensor([[2.0, -0.25]])}
GRADIENTS = {"conv": torch.tensor([[0.1, -5.0], [4.0, 1.0]]), "head": torch.tensor([[0.0, 8.0]])}


def pruned_by(
    method: PruningMethod, density: float, weights: Mapping[str, Tensor] = WEIGHTS, *, seed: int = 0
) -> dict[str, Tensor]:
    return prune(
        method, weights, density, slopes=GRADIENTS, generator=torch.Generator().manual_seed(seed)
    )


def test_pruning_methods_zero_their_lowest_scores() -> None:
    pruned = pruned_by(PruningMethod.MAGNITUDE, 0.5)
    # |w|: 4, 1, 0.5, 3, 2, 0.25: the largest three are 4, 3 and 2.
    assert pruned["conv"].tolist() == [[-4.0, 0.0], [0.0, 3.0]]
    assert pruned["head"].tolist() == [[2.0, 0.0]]
    # -0.25 is dropped; -0.0 would be equal to zero, and yet a value that is sent.
    assert not any(bool(weight[weight == 0].signbit().any()) for weight in pruned.values())
    pruned = pruned_by(PruningMethod.SNIP, 0.5)
    # |g w|: 0.4, 5, 2, 3, 0, 2: of the two 2s the earlier one stays.
    assert pruned["conv"].tolist() == [[0.0, 1.0], [0.5, 3.0]]
    assert pruned["head"].tolist() == [[0.0, 0.0]]
    pruned = pruned_by(PruningMethod.NONE, 0.1)
    assert all(torch.equal(pruned[name], weight) for name, weight in WEIGHTS.items())
    assert all(pruned[name] is not weight for name, weight in WEIGHTS.items())


def test_random_pruning_depends_only_on_the_generator() -> None:
    ones = {"a": torch.ones(30, 10), "b": torch.ones(50)}
    first, again, other = (
        pruned_by(PruningMethod.RANDOM, 0.5, ones, seed=seed) for seed in (1, 1, 2)
    )
    assert torch.equal(first["a"], again["a"])
    assert not torch.equal(first["a"], other["a"])


def test_only_matrices_and_filters_are_prunable() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 3))
    assert list(prunable_parameters(model)) == ["0.weight", "3.weight"]


shapes = st.lists(st.lists(st.integers(0, 5), min_size=0, max_size=3), min_size=1, max_size=4)


def drawn_scores(sizes: list[list[int]], seed: int, num_values: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        f"tensor{index}": torch.randint(num_values, size, generator=generator).float()
        for index, size in enumerate(sizes)
    }


@given(
    sizes=shapes,
    density=st.floats(0.0, 1.0, exclude_min=True),
    seed=st.integers(0, 2**32),
    num_values=st.sampled_from([1, 2, 5, 1000]),
)
def test_pruning_keeps_the_rounded_share_of_a_stable_sort(
    sizes: list[list[int]], density: float, seed: int, num_values: int
) -> None:
    scores = drawn_scores(sizes, seed, num_values)
    masks = masks_of_largest(scores, density)
    assert {name: mask.shape for name, mask in masks.items()} == {
        name: score.shape for name, score in scores.items()
    }
    flat_T = torch.cat([score.flatten() for score in scores.values()])
    kept_T = torch.cat([mask.flatten() for mask in masks.values()])
    count = round(density * len(flat_T))
    best = flat_T.argsort(descending=True, stable=True)[:count]
    assert kept_T.nonzero().flatten().tolist() == sorted(best.tolist())


@pytest.mark.parametrize("density", [0.0, -0.1, 1.0001, 85.0, math.nan, math.inf])
def test_density_outside_the_unit_interval_is_refused(density: float) -> None:
    with pytest.raises(ConfigError) as raised:
        masks_of_largest({"a": torch.ones(3)}, density)
    assert f"density {density} is outside (0, 1]" in str(raised.value)
    assert "KEEPS" in str(raised.value)
    assert masks_of_largest({"a": torch.ones(3)}, 1.0)["a"].all()


STATE = {"w": torch.tensor([[1.0, -2.0], [3.0, 0.0]]), "steps": torch.tensor(7)}


@pytest.mark.parametrize(
    ("kept", "steps", "expected"),
    [
        ([[1.0, -2.0], [3.0, 0.0]], 7, True),
        ([[0.0, -2.0], [3.0, 0.0]], 7, True),
        ([[0.0, 0.0], [0.0, 0.0]], 7, True),
        # A weight has moved, one has grown from nothing, a batch more was seen.
        ([[1.0, -2.0], [3.5, 0.0]], 7, False),
        ([[1.0, -2.0], [3.0, 0.5]], 7, False),
        ([[1.0, -2.0], [3.0, 0.0]], 8, False),
    ],
)
def test_kept_weights_must_be_unchanged(
    kept: list[list[float]], steps: int, *, expected: bool
) -> None:
    result = {"w": torch.tensor(kept), "steps": torch.tensor(steps)}
    assert is_pruned_from(result, STATE) is expected
