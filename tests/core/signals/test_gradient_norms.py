from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lipt.common.data.dataset import Dataset, in_memory
from lipt.common.errors import SignalsError
from lipt.common.images.formats import ImageFormat
from lipt.common.inputs.model_input import to_model_input
from lipt.common.signals.passes import Batches
from lipt.common.targets.values import SingleLabel
from lipt.core.signals.gradient_norms import (
    default_chunk_size,
    full_gradient_norms,
    per_example_norms,
)
from tests.core.signals.made_up import CPU, IMAGE, made_up_dataset, made_up_network
from tests.sentences import Reader

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


def test_by_hand() -> None:
    # One logit difference: softmax(0, 0) = (1/2, 1/2), e = (-1/2, 1/2), inputs 4 pixels of value 2:
    # |g|^2 = |e|^2 (4 * 2^2 + 1) = 17 / 2.
    head = nn.Linear(4, 2)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    model = nn.Sequential(nn.Flatten(), head)
    white = torch.full((1, 1, 2, 2), 255, dtype=torch.uint8)
    dataset = in_memory("fake", ("a", "b"), torch.tensor([0]), "0" * 64, white)
    found = norms(model, dataset, image=ImageFormat(1, 2, 2, mean=(0.0,), std=(0.5,)))
    assert found.tolist() == pytest.approx([8.5**0.5])


def test_frozen_parameters_do_not_count() -> None:
    model, dataset = made_up_network(), made_up_dataset(NUM_EXAMPLES)
    model[0].requires_grad_(requires_grad=False)
    found = norms(model, dataset, chunk_size=7)
    torch.testing.assert_close(found, autograd_norms(model, dataset), rtol=1e-5, atol=1e-5)
    assert (found < norms(made_up_network(), dataset)).all()


def test_the_model_stays_as_it_was() -> None:
    model = made_up_network()
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    norms(model, made_up_dataset(NUM_EXAMPLES), chunk_size=7)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_thread_count_does_not_matter() -> None:
    model, dataset, threads = (
        made_up_network(),
        made_up_dataset(NUM_EXAMPLES),
        torch.get_num_threads(),
    )
    found = []
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            found.append(norms(model, dataset))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*found)


def test_rows_follow_the_ids() -> None:
    model, dataset = made_up_network(), made_up_dataset(NUM_EXAMPLES)
    ids = torch.tensor([9, 2, 5])
    found = full_gradient_norms(model, Batches(dataset, IMAGE, CPU, 2, lambda *_: None, ids))
    torch.testing.assert_close(found, norms(model, dataset)[ids])


def test_gradients_that_are_not_finite_name_their_ids() -> None:
    model = made_up_network()
    nn.init.constant_(list(model.parameters())[-1], float("nan"))
    with pytest.raises(SignalsError, match=r"gradients are not finite for 16 of 16 .* ids 0, 1, "):
        norms(model, made_up_dataset(NUM_EXAMPLES))


def test_chunks_fit_in_memory() -> None:
    # 4 bytes for each of 2^26 parameters: 8 gradients in 2 GiB.
    large, small = nn.Linear(2**13, 2**13, bias=False, device="meta"), nn.Linear(2, 2)
    cuda = torch.device("cuda")
    assert default_chunk_size(large, cuda) == 8
    assert default_chunk_size(small, cuda) == 256
    assert default_chunk_size(small, CPU) == 16
    assert default_chunk_size(large, CPU) == 1
