"""Figures of models whose tensors can be counted by hand; float32 is 4 bytes."""

import pytest
import torch
from torch import Tensor, nn

from lipt.common.errors import ConfigError
from lipt.common.tensor_files import specs_of
from lipt.data.inputs.specs import ImageSpec
from lipt.models.footprint import LiveTensors, ModelFigures, measure_model
from lipt.models.registry import build_model, build_without_values
from tests.faults.memory import memory_growth

pytestmark = pytest.mark.slow


def figures(model: nn.Module, *shape: int) -> ModelFigures:
    channels, height, width = shape
    return measure_model(model.train(), "mine", inputs=ImageSpec(channels, height, width))


def test_measured_sizes_of_a_small_network_equal_its_tensors() -> None:
    # Weights 6 x 5 + 5 + 5 x 3 + 3 = 53. Of an image: itself 6, the hidden layer 5 and what is left
    # of it 5; then 3 logits take the place of the hidden layer. Gradients as the largest, twice.
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    assert figures(model, 1, 2, 3) == ModelFigures(
        weights_bytes=53 * 4,
        training_bytes=(6 + 5 + 5 + 2 * 6) * 4,
        evaluation_bytes=(6 + 5 + 5) * 4,
    )


def test_measuring_does_not_change_the_model() -> None:
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(6), nn.Dropout(), nn.Linear(6, 3)).train()
    before = {name: item.clone() for name, item in model.state_dict().items()}
    state = torch.get_rng_state()
    figures(model, 1, 2, 3)
    assert all(torch.equal(before[name], item) for name, item in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert all(item.grad is None for item in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


class LooksAtValues(nn.Module):
    """Has no answer without values, and a buffer that training changes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.fc = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        flat = self.norm(x.flatten(1))
        return self.fc(flat if float(flat.detach().sum()) > -1e9 else -flat)  # type: ignore[no-any-return]


def test_a_model_that_branches_on_values_is_measured_with_real_values() -> None:
    model = LooksAtValues()
    found = figures(model, 1, 2, 3)
    # The image, what is normalized and the logits are among what is alive.
    assert found.training_bytes >= (6 + 6 + 3 + 2 * 6) * 4
    assert found.weights_bytes == (4 * 6 + 6 * 3 + 3) * 4 + 8
    assert model.norm.num_batches_tracked is not None
    assert model.norm.num_batches_tracked.item() == 0


def test_a_model_that_cannot_be_trained_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'mine' fails in training .*: mat1 and mat2"):
        figures(nn.Linear(7, 3), 1, 2, 3)


def test_live_tensors_are_counted_once_until_they_are_freed() -> None:
    with LiveTensors() as live:
        first = torch.zeros(100)
        view = first[:50]
        del first
        second = torch.ones(25)
        del view
        torch.ones(50)
    # 400 bytes and 100 more; then 100 and 200.
    assert (live.peak_bytes, live.largest_bytes) == (500, 400)
    assert second.sum() == 25


@pytest.mark.parametrize(
    ("spec", "side"),
    [
        ("wrn28_10", 32),
        ("torchvision:regnet_y_400mf", 32),
        ("torchvision:swin_t", 64),
        ("torchvision:googlenet", 64),
    ],
)
def test_a_model_on_the_meta_device_has_the_same_sizes(spec: str, side: int) -> None:
    inputs = ImageSpec(3, side, side)
    real = build_model(spec, num_classes=7, inputs=inputs, seed=0)
    empty = build_without_values(spec, num_classes=7, inputs=inputs)
    assert all(item.is_meta for item in empty.state_dict().values())
    assert specs_of(empty.state_dict()) == specs_of(real.state_dict())
    assert measure_model(empty, spec, inputs=inputs) == measure_model(real, spec, inputs=inputs)


def test_measuring_the_largest_models_takes_no_memory() -> None:
    spec, inputs = "torchvision:regnet_y_128gf", ImageSpec(3, 224, 224)
    build_without_values("torchvision:resnet18", num_classes=10, inputs=inputs)
    with memory_growth(100 * 2**20):
        model = build_without_values(spec, num_classes=10, inputs=inputs)
        found = measure_model(model, spec, inputs=inputs)
    assert found.weights_bytes > 2.5e9
