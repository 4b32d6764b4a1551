from dataclasses import replace

import torch
from torch import Tensor, nn

from lipt.core.pretraining.merged import Merged, added_by
from lipt.core.pretraining.simplex import uniform
from lipt.data.targets.values import SingleLabel
from tests.core.mixture.shifts import shifts


def test_theta_moves_by_the_weighted_differences() -> None:
    found = shifts(1.0, 4.0).weights(torch.tensor([0.75, 0.25]))
    assert found["0.bias"].tolist() == [1.75]
    assert found["0.weight"].tolist() == [[0.0]]


def test_whole_numbers_are_those_of_theta_star() -> None:
    initial = {"weight": torch.zeros(2), "num_batches_tracked": torch.tensor(7)}
    learner = {"weight": torch.ones(2), "num_batches_tracked": torch.tensor(99)}
    added = added_by(initial, [learner])
    assert list(added) == ["weight"]
    merged = replace(shifts(1.0), initial=initial, added=added)
    assert merged.weights(torch.ones(1))["num_batches_tracked"] == 7


def test_the_target_between_two_learners_gets_its_exact_shares() -> None:
    # 0.25 x 0 + 0.75 x 4 is the target, 3.
    found = shifts(0.0, 4.0, targets=(3.0,) * 8).fit(seed=0)
    assert torch.allclose(found.weights_K, torch.tensor([0.25, 0.75]).double(), atol=0.01)


def test_linearized_losses_and_slopes_are_exact_at_their_point() -> None:
    merged = network(seed=0)
    around_K = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)
    linear = merged.linearized(around_K)
    assert torch.allclose(linear(around_K[None])[0].float(), merged.losses_at(around_K), atol=1e-5)
    towards_K = torch.tensor([0.1, -0.1, 0.0], dtype=torch.float64)
    for losses in (
        lambda one_K: linear(one_K[None])[0].mean(),
        lambda one_K: merged.losses_at(one_K).mean(),
    ):
        slope = (losses(around_K + 0.1 * towards_K) - losses(around_K - 0.1 * towards_K)) / 0.2
        assert abs(float(slope) - exact_slope(merged, around_K, towards_K)) < 5e-3


def exact_slope(merged: Merged, around_K: Tensor, towards_K: Tensor) -> float:
    shares_K = around_K.float().requires_grad_()
    (slopes_K,) = torch.autograd.grad(loss_through_the_network(merged, shares_K), shares_K)
    return float(slopes_K @ towards_K.float())


def loss_through_the_network(merged: Merged, shares_K: Tensor) -> Tensor:
    """One functional forward pass, which automatic differentiation can follow."""
    buffers = dict(merged.model.named_buffers())
    weights = {
        name: buffers[name].clone() if name in buffers else tensor
        for name, tensor in merged.weights(shares_K).items()
    }
    inputs = (next(iter(merged.batches)),)
    outputs_NT = torch.func.functional_call(merged.model.train(), weights, inputs)
    return merged.target.mean_loss(outputs_NT, merged.targets_N)


def network(seed: int) -> Merged:
    """Learners of a small network with batch norm, near theta*."""
    draws = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    initial = {
        name: torch.randn(tensor.shape, generator=draws) if tensor.is_floating_point() else tensor
        for name, tensor in model.state_dict().items()
    }
    initial["1.running_var"] = torch.ones(8)
    learners = [
        {
            name: tensor + 0.2 * torch.randn(tensor.shape, generator=draws)
            if tensor.is_floating_point()
            else tensor
            for name, tensor in initial.items()
        }
        for _ in range(3)
    ]
    batches = [torch.randn(60, 4, generator=draws)]
    targets_N = torch.randint(3, (60,), generator=draws)
    return Merged(model, initial, added_by(initial, learners), batches, SingleLabel(3), targets_N)


def test_fit_is_as_good_as_exponentiated_gradient_through_the_network() -> None:
    merged = network(seed=1)
    logs_K = torch.zeros(3)
    for _ in range(200):
        shares_K = logs_K.softmax(dim=0).requires_grad_()
        (slopes_K,) = torch.autograd.grad(loss_through_the_network(merged, shares_K), shares_K)
        logs_K = logs_K - slopes_K
    slow = float(merged.losses_at(logs_K.softmax(dim=0)).mean())
    found = merged.fit(seed=0, num_resamples=0)
    # Cross-fitting may choose a penalty, so the loss may be a little larger.
    assert float(merged.losses_at(found.weights_K).mean()) <= slow + 0.01


def test_batch_statistics_of_the_target_replace_running_ones() -> None:
    merged = network(seed=2)
    other = {**merged.initial, "1.running_mean": torch.full((8,), 50.0)}
    moved = replace(merged, initial=other)
    assert torch.equal(merged.outputs(uniform(3)), moved.outputs(uniform(3)))
