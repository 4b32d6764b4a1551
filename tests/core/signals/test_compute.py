from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lipt.common.data.dataset import Dataset
from lipt.common.images.formats import ImageFormat
from lipt.common.inputs.model_input import to_model_input
from lipt.common.signals.passes import Batches
from lipt.common.targets.values import SingleLabel
from lipt.core.selection.strategies.scores import last_layer_norms
from lipt.core.signals import compute
from lipt.core.signals.compute import (
    compute_signals,
    default_chunk_size,
    errors_of,
    full_gradient_norms,
    per_example_norms,
)
from lipt.core.signals.signals import Signals
from lipt.core.signals.stored import StorageLimits
from tests.core.signals.made_up import CPU, IMAGE, made_up_dataset, made_up_network
from tests.sentences import Reader


def signals_of(model: nn.Module, dataset: Dataset, scratch: Path | None = None) -> Signals:
    batches = Batches(dataset, IMAGE, CPU, 16, lambda *_: None)
    return compute_signals(model, batches, scratch=scratch)


def last_layer_gradients(model: nn.Module, dataset: Dataset) -> Tensor:
    """One autograd call per example's own loss; the last layer's parameters in a row."""
    model.eval()
    head = list(model.children())[-1]
    gradients = []
    for row in range(len(dataset)):
        inputs = to_model_input(dataset.images(torch.tensor([row])), IMAGE, CPU)
        loss = functional.cross_entropy(model(inputs), dataset.labels_N[row : row + 1])
        parts = torch.autograd.grad(loss, list(head.parameters()))
        gradients.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(gradients)


def test_a_confident_examples_error_keeps_its_digits() -> None:
    # p of the wrong class is e^-20 / (1 + e^-20) = 2.0611536e-9; 1 - p rounds to 1 in float32.
    errors = errors_of(torch.tensor([[20.0, 0.0]]), torch.tensor([0]))
    assert errors[0].tolist() == pytest.approx([-2.0611536e-9, 2.0611536e-9], rel=1e-6)


@pytest.mark.parametrize("bias", [True, False])
def test_factored_norms_and_inner_products_are_those_of_autograd(*, bias: bool) -> None:
    model, dataset = made_up_network(bias=bias), made_up_dataset()
    gradients_NP = last_layer_gradients(model, dataset)
    signals = signals_of(model, dataset)
    assert signals.has_bias == bias
    torch.testing.assert_close(
        last_layer_norms(signals), gradients_NP.norm(dim=1), rtol=1e-5, atol=1e-5
    )
    errors_NC, features_ND = signals.errors_NC, signals.features_ND
    products_NN = (errors_NC @ errors_NC.T) * (features_ND @ features_ND.T + float(bias))
    torch.testing.assert_close(products_NN, gradients_NP @ gradients_NP.T, rtol=1e-5, atol=1e-5)


def test_signals_in_a_mapped_file_are_the_same_and_outlive_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, dataset = made_up_network(), made_up_dataset()
    held = signals_of(model, dataset)
    monkeypatch.setattr(compute, "STORAGE_LIMITS", StorageLimits(memory_bytes=0))
    mapped = signals_of(model, dataset, tmp_path / "scratch")
    assert list((tmp_path / "scratch").iterdir()) == []
    assert torch.equal(mapped.errors_NC, held.errors_NC)
    assert torch.equal(mapped.features_ND, held.features_ND)
    mapped.save(tmp_path / "signals")
    assert torch.equal(Signals.load(tmp_path / "signals").errors_NC, held.errors_NC)


def test_what_is_over_a_limit_is_kept_in_half_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, dataset = made_up_network(), made_up_dataset()
    exact = signals_of(model, dataset)
    # 40 examples of 3 errors and 64 features take 480 and 10,240 bytes in float32.
    for error_bytes, feature_bytes in ((479, 10_240), (480, 10_239), (1, 1)):
        limits = StorageLimits(error_bytes, feature_bytes)
        monkeypatch.setattr(compute, "STORAGE_LIMITS", limits)
        signals = signals_of(model, dataset)
        assert signals.errors_NC.dtype == (torch.float32 if error_bytes == 480 else torch.float16)
        wide = feature_bytes == 10_240
        assert signals.features_ND.dtype == (torch.float32 if wide else torch.float16)
        assert torch.equal(signals.errors_NC, exact.errors_NC.to(signals.errors_NC.dtype))
        assert torch.equal(signals.features_ND, exact.features_ND.to(signals.features_ND.dtype))
    signals.save(tmp_path / "signals")
    loaded = Signals.load(tmp_path / "signals")
    assert loaded.errors_NC.dtype == loaded.features_ND.dtype == torch.float16
    taken = loaded.take(torch.tensor([3, 1]))
    assert taken.errors_NC.dtype == taken.features_ND.dtype == torch.float32


NUM_EXAMPLES = 20


class Hesitant(nn.Module):
    """Decides by a value what to compute, which cannot be done for many examples at once."""

    def __init__(self) -> None:
        super().__init__()
        self.reader = Reader(3)

    def forward(self, tokens: Tensor, figures: Tensor) -> Tensor:
        logits_BC: Tensor = self.reader(tokens, figures)
        return 2 * logits_BC if bool((figures < 0).any()) else logits_BC


@pytest.mark.parametrize("hesitant", [False, True])
def test_models_that_are_given_keywords_have_the_norms_of_autograd(*, hesitant: bool) -> None:
    torch.manual_seed(0)
    plain = Reader(3).eval()
    model: nn.Module = plain
    if hesitant:
        model = Hesitant().eval()
        model.load_state_dict({f"reader.{name}": item for name, item in plain.state_dict().items()})
    inputs = {"tokens": torch.tensor([[1, 2], [3, 0], [4, 5]]), "figures": torch.rand(3, 3)}
    labels_B = torch.tensor([0, 2, 1])
    expected = []
    for row in range(3):
        logits_1C = plain(inputs["tokens"][row : row + 1], inputs["figures"][row : row + 1])
        loss = functional.cross_entropy(logits_1C, labels_B[row : row + 1])
        parts = torch.autograd.grad(loss, list(plain.parameters()))
        expected.append(torch.cat([part.flatten() for part in parts]).norm())
    found_B = per_example_norms(model, SingleLabel(3), inputs, labels_B)
    torch.testing.assert_close(found_B, torch.stack(expected), rtol=1e-5, atol=1e-5)


def norms(
    model: nn.Module, dataset: Dataset, *, chunk_size: int = 16, image: ImageFormat = IMAGE
) -> Tensor:
    return full_gradient_norms(model, Batches(dataset, image, CPU, chunk_size, lambda *_: None))


def autograd_norms(model: nn.Module, dataset: Dataset) -> Tensor:
    model.eval()
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    found = []
    for row in range(len(dataset)):
        inputs = to_model_input(dataset.images(torch.tensor([row])), IMAGE, CPU)
        loss = functional.cross_entropy(model(inputs), dataset.labels_N[row : row + 1])
        parts = torch.autograd.grad(loss, trainable)
        found.append(torch.cat([part.flatten() for part in parts]).norm())
    return torch.stack(found)


@pytest.mark.parametrize("chunk_size", [1, 7, NUM_EXAMPLES])
def test_equals_autograd_one_by_one_for_any_chunk_size(chunk_size: int) -> None:
    model, dataset = made_up_network(), made_up_dataset(NUM_EXAMPLES)
    expected = autograd_norms(model, dataset)
    found = norms(model, dataset, chunk_size=chunk_size)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_chunks_fit_in_memory() -> None:
    # 4 bytes for each of 2^26 parameters: 8 gradients in 2 GiB.
    large, small = nn.Linear(2**13, 2**13, bias=False, device="meta"), nn.Linear(2, 2)
    cuda = torch.device("cuda")
    assert default_chunk_size(large, cuda) == 8
    assert default_chunk_size(small, cuda) == 256
    assert default_chunk_size(small, CPU) == 16
    assert default_chunk_size(large, CPU) == 1
