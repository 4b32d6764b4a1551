import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lipt.common.blobs.blob import BlobName
from lipt.common.config.run_config import RunConfig
from lipt.common.tensor_files import Weights, pack
from lipt.coordinator.compute.context import Context
from lipt.coordinator.compute.jobs.selection import RecheckSubset
from lipt.core.signals.compute import LossSum, Parameters, loss_sum, trainable
from lipt.core.stages.recheck import Recheck, fit_quadratic_model, sample_ids
from lipt.data.inputs.specs import ImageFormat
from lipt.data.targets.values import SingleLabel
from tests.digits import digits_context

CONFIG = RunConfig(model="resnet8", seed=3, evaluation_threads=1)
IMAGE = ImageFormat(1, 8, 8, mean=(0.5,), std=(0.25,))


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Context:
    return digits_context(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="module")
def stored(context: Context) -> Callable[[float], BlobName]:
    weights: Weights = dict(context.new_model(CONFIG).state_dict())
    head = [name for name in weights if name.endswith("weight")][-1]

    def store(scale: float) -> BlobName:
        changed = weights | {head: weights[head] * scale}
        return context.blobs.put_bytes(pack(changed))

    return store


def recheck(context: Context, anchor: BlobName, weights: BlobName) -> Recheck:
    return RecheckSubset(CONFIG, IMAGE, anchor=anchor, weights=weights).run(context)


def test_a_small_change_is_predicted(context: Context, stored: Callable[[float], BlobName]) -> None:
    near, far = (recheck(context, stored(1.0), stored(scale)) for scale in (1.02, 60.0))
    assert near.predicted_loss == pytest.approx(near.actual_loss, rel=1e-2)
    assert near.can_stay
    assert not far.can_stay
    # A job answers the same whenever it is asked.
    assert recheck(context, stored(1.0), stored(60.0)) == far


@pytest.mark.parametrize(
    ("num_examples", "size"), [(10, 10), (256, 256), (1797, 256), (50_000, 500), (1_281_167, 12812)]
)
def test_the_sample_is_a_hundredth_and_enough(num_examples: int, size: int) -> None:
    ids = sample_ids(num_examples, seed=1)
    assert len(torch.unique(ids)) == len(ids) == size
    assert torch.equal(ids, sample_ids(num_examples, seed=1))
    assert bool((ids.diff() > 0).all())


def quadratic(parameters: Parameters) -> Tensor:
    # Two "examples": 3 a^2 + 2 a - 5 b^2 and 1, so the mean is half of their sum.
    a, b = parameters["a"], parameters["b"]
    return (3 * a.square() + 2 * a - 5 * b.square() + 1).sum()


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


@pytest.mark.parametrize("part_size", [1, 3, 7])
def test_the_quadratic_model_does_not_depend_on_batches(part_size: int) -> None:
    network = make_network()
    at = trainable(network)
    whole = fit_quadratic_model(losses_of(network, part_size=7), at, 7, seed=0)
    parts = fit_quadratic_model(losses_of(network, part_size=part_size), at, 7, seed=0)
    assert parts.loss == pytest.approx(whole.loss)
    for name in at:
        torch.testing.assert_close(parts.gradient[name], whole.gradient[name])
        torch.testing.assert_close(parts.diagonal[name], whole.diagonal[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("predicted", "actual", "stays"),
    [
        *((1.0, 1.0, True), (0.9, 1.0, True), (1.2, 1.0, False), (0.8, 1.0, False)),
        *((0.0, 0.0, True), (math.nan, 1.0, False), (1.0, math.nan, False)),
        *((1.0, math.inf, False), (math.inf, math.inf, False)),
    ],
)
def test_decision_by_predicted_and_actual_loss(
    predicted: float, actual: float, *, stays: bool
) -> None:
    assert Recheck(predicted, actual).can_stay is stays
