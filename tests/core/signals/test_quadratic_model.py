from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lipt.common.targets.values import SingleLabel
from lipt.core.signals.gradient_norms import LossSum, Parameters, loss_sum, trainable
from lipt.core.signals.quadratic_model import fit_quadratic_model, must_reselect


def quadratic(parameters: Parameters) -> Tensor:
    # Two "examples": 3 a^2 + 2 a - 5 b^2 and 1, so the mean is half of their sum.
    a, b = parameters["a"], parameters["b"]
    return (3 * a.square() + 2 * a - 5 * b.square() + 1).sum()


def test_a_diagonal_quadratic_by_hand() -> None:
    # At a = 1, b = 2: the sum is 3 + 2 - 20 + 1 = -14, its gradient (8, -20), its Hessian's
    # diagonal (6, -10). Means over two examples are half of that.
    at = {"a": torch.tensor([1.0]), "b": torch.tensor([2.0])}
    model = fit_quadratic_model([quadratic], at, 2, seed=0, num_probes=1)
    assert model.loss == -7.0
    assert {name: float(values) for name, values in model.gradient.items()} == {"a": 4, "b": -10}
    assert {name: float(values) for name, values in model.diagonal.items()} == {"a": 3, "b": -5}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("num_probes", [1, 3])
def test_the_model_of_a_diagonal_quadratic_is_exact(seed: int, num_probes: int) -> None:
    at = {"a": torch.tensor([1.0, 0.5]), "b": torch.tensor([2.0, -3.0])}
    model = fit_quadratic_model([quadratic], at, 2, seed=seed, num_probes=num_probes)
    assert model.predict(at) == pytest.approx(float(quadratic(at)) / 2)
    other = {"a": torch.tensor([-4.0, 7.0]), "b": torch.tensor([0.25, 11.0])}
    assert model.predict(other) == pytest.approx(float(quadratic(other)) / 2)


def test_a_linear_loss_has_no_curvature() -> None:
    at = {"a": torch.tensor([1.0]), "unused": torch.tensor([5.0])}
    model = fit_quadratic_model([lambda parameters: 3 * parameters["a"].sum()], at, 1, seed=0)
    assert float(model.gradient["unused"]) == 0.0
    assert float(model.diagonal["a"]) == 0.0
    assert model.predict({"a": torch.tensor([3.0]), "unused": torch.tensor([0.0])}) == 9.0


def make_network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3)
        )
    return network.eval()


def batch(num_images: int = 7) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs_BCHW = torch.randn(num_images, 1, 4, 4, generator=generator)
    return inputs_BCHW, torch.randint(0, 3, (num_images,), generator=generator)


def losses_of(network: nn.Module, *, part_size: int) -> list[LossSum]:
    inputs_BCHW, labels_B = batch()
    return [
        loss_sum(
            network,
            SingleLabel(3),
            inputs_BCHW[start : start + part_size],
            labels_B[start : start + part_size],
        )
        for start in range(0, len(labels_B), part_size)
    ]


def exact_hessian(network: nn.Module) -> tuple[Tensor, Tensor]:
    """Gradient and Hessian of the mean loss by all parameters in a row, entry by entry."""
    inputs_BCHW, labels_B = batch()
    parameters = [values for values in network.parameters() if values.requires_grad]
    loss = functional.cross_entropy(network(inputs_BCHW), labels_B)
    gradients = torch.autograd.grad(loss, parameters, create_graph=True)
    gradient_P = torch.cat([values.flatten() for values in gradients])
    rows = [torch.autograd.grad(entry, parameters, retain_graph=True) for entry in gradient_P]
    hessian_PP = torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])
    return gradient_P.detach(), hessian_PP


def test_gradient_and_diagonal_are_those_of_autograd() -> None:
    network = make_network()
    gradient_P, hessian_PP = exact_hessian(network)
    at = trainable(network)
    model = fit_quadratic_model(losses_of(network, part_size=7), at, 7, seed=0, num_probes=300)
    found_P = torch.cat([values.flatten() for values in model.gradient.values()])
    torch.testing.assert_close(found_P, gradient_P, rtol=1e-5, atol=1e-6)
    diagonal_P = torch.cat([values.flatten() for values in model.diagonal.values()])
    # A probe's error has the variance of the row's other entries, squared and summed.
    spread_P = (hessian_PP.square().sum(dim=1) - hessian_PP.diagonal().square()) / 300
    errors_P = (diagonal_P - hessian_PP.diagonal()).abs()
    assert bool((errors_P <= 5 * spread_P.clamp(min=1e-12).sqrt() + 1e-6).all())
    inputs_BCHW, labels_B = batch()
    expected = float(functional.cross_entropy(network(inputs_BCHW), labels_B).detach())
    assert model.loss == pytest.approx(expected, rel=1e-6)


def test_one_probe_is_the_product_with_the_exact_hessian() -> None:
    network = make_network()
    _, hessian_PP = exact_hessian(network)
    model = fit_quadratic_model(
        losses_of(network, part_size=7), trainable(network), 7, seed=5, num_probes=1
    )
    diagonal_P = torch.cat([values.flatten() for values in model.diagonal.values()])
    # z * (H z) of some signs z: the row's sum with some signs, the diagonal's own a plus.
    rest_PP = hessian_PP.abs()
    reach_P = rest_PP.sum(dim=1) - rest_PP.diagonal()
    assert bool(((diagonal_P - hessian_PP.diagonal()).abs() <= reach_P + 1e-5).all())


@pytest.mark.parametrize("part_size", [1, 3, 7])
def test_parts_do_not_matter(part_size: int) -> None:
    network = make_network()
    at = trainable(network)
    whole = fit_quadratic_model(losses_of(network, part_size=7), at, 7, seed=0)
    parts = fit_quadratic_model(losses_of(network, part_size=part_size), at, 7, seed=0)
    assert parts.loss == pytest.approx(whole.loss)
    for name in at:
        torch.testing.assert_close(parts.gradient[name], whole.gradient[name])
        torch.testing.assert_close(parts.diagonal[name], whole.diagonal[name], rtol=1e-4, atol=1e-6)


def test_a_small_step_is_predicted_and_a_large_one_is_not() -> None:
    network = make_network()
    at = trainable(network)
    parts = losses_of(network, part_size=7)
    model = fit_quadratic_model(parts, at, 7, seed=0, num_probes=8)

    def after(factor: float) -> bool:
        moved = {name: factor * values for name, values in at.items()}
        actual = float(parts[0](moved)) / 7
        return must_reselect(model.predict(moved), actual)

    assert not after(1.01)
    assert after(10.0)


def test_the_network_stays_as_it_was() -> None:
    network = make_network()
    before = {name: values.clone() for name, values in network.state_dict().items()}
    generator = torch.get_rng_state()
    fit_quadratic_model(losses_of(network, part_size=3), trainable(network), 7, seed=0)
    assert all(torch.equal(values, before[name]) for name, values in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())
    assert all(parameter.requires_grad for parameter in network.parameters())
    assert torch.equal(torch.get_rng_state(), generator)


def test_frozen_parameters_are_left_out() -> None:
    network = make_network()
    next(network.parameters()).requires_grad_(False)
    assert len(trainable(network)) == len(list(network.parameters())) - 1


@pytest.mark.parametrize(
    ("predicted", "actual", "expected"),
    [
        (1.0, 1.0, False),
        (1.1, 1.0, False),
        (1.2, 1.0, True),
        (0.8, 1.0, True),
        (0.0, 0.0, False),
        (math.nan, 1.0, True),
        (1.0, math.nan, True),
        (1.0, math.inf, True),
        (math.inf, math.inf, True),
    ],
)
def test_the_decision(predicted: float, actual: float, *, expected: bool) -> None:
    assert must_reselect(predicted, actual, threshold=0.1 + 1e-9) is expected
