from __future__ import annotations

from typing import cast

import pytest
import torch
from torch import Tensor, nn

from lipt.core.evaluation import (
    batch_norm_statistics,
    has_batch_norm,
    reestimate_batch_norm,
)


def stale(layer: nn.BatchNorm1d | nn.BatchNorm2d) -> None:
    cast("Tensor", layer.running_mean).fill_(7.0)
    cast("Tensor", layer.running_var).fill_(9.0)


def statistics(layer: nn.Module) -> tuple[list[float], list[float]]:
    mean, variance = cast("Tensor", layer.running_mean), cast("Tensor", layer.running_var)
    return mean.tolist(), variance.tolist()


def test_statistics_by_hand() -> None:
    # Batches (0, 2) and (4, 10): means 1 and 7, unbiased variances 2 and 18.
    layer = nn.BatchNorm1d(1)
    stale(layer)
    reestimate_batch_norm(layer, [torch.tensor([[0.0], [2.0]]), torch.tensor([[4.0], [10.0]])])
    assert statistics(layer) == ([4.0], [10.0])


def test_a_smaller_last_batch_weighs_less() -> None:
    # (0, 0, 3, 3) and (9, 11): mean 26 / 6; variances 3 and 2, weighted 4 : 2, so 16 / 6.
    layer = nn.BatchNorm1d(1)
    batches = [torch.tensor([[0.0], [0.0], [3.0], [3.0]]), torch.tensor([[9.0], [11.0]])]
    reestimate_batch_norm(layer, batches)
    mean, variance = statistics(layer)
    assert mean == pytest.approx([26 / 6])
    assert variance == pytest.approx([16 / 6])


def test_first_layer_has_the_population_mean_and_variance() -> None:
    inputs = torch.randn(64, 3, 5, 5, generator=torch.Generator().manual_seed(0)) * 4 + 2
    model = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    reestimate_batch_norm(model, [inputs])
    values = inputs.transpose(0, 1).flatten(1).double()
    mean, variance = statistics(model[0])
    assert mean == pytest.approx(values.mean(dim=1).tolist(), abs=1e-5)
    assert variance == pytest.approx(values.var(dim=1).tolist(), rel=1e-5)


def test_later_layers_see_batches_normalized_by_their_own_statistics() -> None:
    # With one batch, evaluation after the estimate nearly reproduces the training pass, whose
    # variance is biased where the running one is not.
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2), nn.BatchNorm1d(2))
    inputs = torch.randn(512, 2, generator=torch.Generator().manual_seed(1))
    reestimate_batch_norm(model, [inputs])
    model.train()
    trained = model(inputs)
    reestimate_batch_norm(model, [inputs])
    model.eval()
    torch.testing.assert_close(model(inputs), trained, rtol=0.01, atol=0.01)


def test_nothing_but_statistics_changes() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3, momentum=0.3), nn.Dropout(0.5))
    model.train()
    model[1].eval()
    before = {name: value.clone() for name, value in model.named_parameters()}
    reestimate_batch_norm(model, [torch.ones(4, 2), torch.zeros(4, 2)])
    assert [module.training for module in model.modules()] == [True, True, False, True]
    assert model[1].momentum == 0.3
    assert all(torch.equal(value, before[name]) for name, value in model.named_parameters())
    assert all(value.grad is None for value in model.parameters())


def test_flags_come_back_after_an_error() -> None:
    layer = nn.BatchNorm1d(3, momentum=None)
    layer.eval()
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        reestimate_batch_norm(layer, [torch.ones(1, 3)])
    assert not layer.training
    assert layer.momentum is None


def test_dropout_stays_off_so_that_estimates_repeat() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(2))
    model.train()
    inputs = torch.randn(32, 2, generator=torch.Generator().manual_seed(2))
    generator = torch.get_rng_state()
    reestimate_batch_norm(model, [inputs])
    first = statistics(model[1])
    reestimate_batch_norm(model, [inputs])
    assert statistics(model[1]) == first
    assert first[0] == pytest.approx(inputs.mean(dim=0).tolist(), abs=1e-6)
    assert torch.equal(torch.get_rng_state(), generator)


def test_thread_count_does_not_matter() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.BatchNorm2d(8))
    inputs = torch.randn(64, 3, 16, 16, generator=torch.Generator().manual_seed(3))
    threads = torch.get_num_threads()
    found = []
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            reestimate_batch_norm(model, torch.split(inputs, 32))
            found.append(batch_norm_statistics(model))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


@pytest.mark.parametrize(
    "model", [nn.Linear(2, 2), nn.BatchNorm1d(2, track_running_stats=False), nn.LayerNorm(2)]
)
def test_a_model_without_statistics_is_not_even_run(model: nn.Module) -> None:
    assert not has_batch_norm(model)
    reestimate_batch_norm(model, iter(()))
    assert batch_norm_statistics(model) == {}


def test_statistics_are_copies_under_the_names_of_the_state_dict() -> None:
    shared = nn.BatchNorm1d(2)
    model = nn.Sequential(shared, nn.Linear(2, 2), shared)
    taken = batch_norm_statistics(model)
    state = model.state_dict()
    assert set(taken) == {name for name in state if name.startswith(("0.r", "2.r", "0.n", "2.n"))}
    stale(shared)
    assert taken["0.running_mean"].tolist() == [0.0, 0.0]


def test_frozen_statistics_stay_and_are_not_told() -> None:
    layers = nn.BatchNorm1d(1), nn.BatchNorm1d(1)
    for layer in layers:
        stale(layer)
    model = nn.Sequential(*layers)
    frozen = {f"0.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")}
    reestimate_batch_norm(model, [torch.tensor([[0.0], [2.0]])], frozen)
    assert statistics(model[0]) == ([7.0], [9.0])
    # (0 - 7) / 3 and (2 - 7) / 3 have the mean -2.
    assert statistics(model[1])[0] == pytest.approx([-2.0], abs=1e-5)
    assert all(name.startswith("1.") for name in batch_norm_statistics(model, frozen))
    assert has_batch_norm(model, frozen)
    assert not has_batch_norm(model[:1], frozen)
