from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

from lipt.common.config.run_config import PruningMethod
from lipt.common.errors import ConfigError
from lipt.core.learner.pruning import METHODS, PruningInputs, prunable_parameters, prune

WEIGHTS = {
    "conv": torch.tensor([[-4.0, 1.0], [0.5, 3.0]]),
    "head": torch.tensor([[2.0, -0.25]]),
}
GRADIENTS = {
    "conv": torch.tensor([[0.1, -5.0], [4.0, 1.0]]),
    "head": torch.tensor([[0.0, 8.0]]),
}


def no_gradients() -> Mapping[str, Tensor]:
    raise AssertionError("this method needs no gradients")


def inputs(weights: Mapping[str, Tensor] = WEIGHTS, *, seed: int = 0) -> PruningInputs:
    return PruningInputs(weights, no_gradients, torch.Generator().manual_seed(seed))


def test_every_method_of_the_configuration_is_registered() -> None:
    assert set(METHODS) == set(PruningMethod)


def test_magnitude_zeroes_the_weights_closest_to_zero() -> None:
    pruned = prune(PruningMethod.MAGNITUDE, inputs(), 0.5)
    # |w|: 4, 1, 0.5, 3, 2, 0.25: the largest three are 4, 3 and 2.
    assert pruned["conv"].tolist() == [[-4.0, 0.0], [0.0, 3.0]]
    assert pruned["head"].tolist() == [[2.0, 0.0]]


def test_snip_zeroes_the_weights_that_the_loss_feels_least() -> None:
    snip_inputs = PruningInputs(WEIGHTS, lambda: GRADIENTS, torch.Generator())
    pruned = prune(PruningMethod.SNIP, snip_inputs, 0.5)
    # |g w|: 0.4, 5, 2, 3, 0, 2: of the two 2s the earlier one stays.
    assert pruned["conv"].tolist() == [[0.0, 1.0], [0.5, 3.0]]
    assert pruned["head"].tolist() == [[0.0, 0.0]]


def test_none_keeps_every_weight_whatever_the_density() -> None:
    pruned = prune(PruningMethod.NONE, inputs(), 0.1)
    assert all(torch.equal(pruned[name], weight) for name, weight in WEIGHTS.items())
    assert all(pruned[name] is not weight for name, weight in WEIGHTS.items())


def test_random_depends_on_the_generator_alone() -> None:
    ones = {"a": torch.ones(30, 10), "b": torch.ones(50)}
    first, again, other = (
        prune(PruningMethod.RANDOM, inputs(ones, seed=seed), 0.5) for seed in (1, 1, 2)
    )
    assert torch.equal(first["a"], again["a"])
    assert not torch.equal(first["a"], other["a"])


def test_random_keeps_every_weight_equally_often() -> None:
    ones = {"a": torch.ones(10), "b": torch.ones(5, 2)}
    draws = inputs(ones)
    kept = torch.zeros(20)
    for _ in range(1000):
        kept += torch.cat([t.flatten() for t in prune(PruningMethod.RANDOM, draws, 0.4).values()])
    # 1000 draws with probability 0.4: mean 400, standard deviation 15.5; four of them.
    assert kept.min() > 400 - 62
    assert kept.max() < 400 + 62


@pytest.mark.parametrize("method", [m for m in PruningMethod if m is not PruningMethod.NONE])
@pytest.mark.parametrize("density", [0.85, 0.9, 0.95, 1.0])
def test_exact_share_is_kept_and_inputs_are_not_modified(
    method: PruningMethod, density: float
) -> None:
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: torch.randn(shape, generator=generator)
        for name, shape in {"a": (16, 3, 3, 3), "b": (10, 64)}.items()
    }
    before = {name: weight.clone() for name, weight in weights.items()}
    drawn = PruningInputs(weights, lambda: before, generator)
    pruned = prune(method, drawn, density)
    kept = sum(int(weight.count_nonzero()) for weight in pruned.values())
    assert kept == round(density * (16 * 27 + 640))
    for name, weight in weights.items():
        assert torch.equal(weight, before[name])
        assert pruned[name].dtype == weight.dtype
        changed = pruned[name] != weight
        assert (pruned[name][changed] == 0).all()


def test_dtypes_stay_and_may_differ() -> None:
    weights = {"a": torch.tensor([1.0, 2.0], dtype=torch.bfloat16), "b": torch.tensor([1.5])}
    pruned = prune(PruningMethod.MAGNITUDE, inputs(weights), 0.7)
    assert pruned["a"].dtype == torch.bfloat16
    assert pruned["a"].tolist() == [0.0, 2.0]
    assert pruned["b"].tolist() == [1.5]


def test_density_is_checked_for_every_method_that_uses_it() -> None:
    with pytest.raises(ConfigError, match=r"density 1\.5 is outside"):
        prune(PruningMethod.MAGNITUDE, inputs(), 1.5)


def test_prunable_are_matrices_and_filters_but_no_biases_or_scales() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 3))
    assert list(prunable_parameters(model)) == ["0.weight", "3.weight"]


def test_what_is_dropped_takes_no_room_whatever_its_sign() -> None:
    pruned = prune(PruningMethod.MAGNITUDE, inputs(), 0.5)
    # -0.25 is dropped; -0.0 would be equal to zero, and yet a value that is sent.
    assert not any(bool(weight[weight == 0].signbit().any()) for weight in pruned.values())
