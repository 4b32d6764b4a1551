from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lipt.common.data.dataset import Dataset, in_memory
from lipt.common.errors import ConfigError, SignalsError
from lipt.common.inputs.model_input import to_model_input
from lipt.common.inputs.specs import ImageSpec
from lipt.common.signals.passes import Batches
from lipt.core.selection.strategies.scores import el2n, grand, last_layer_norms
from lipt.core.signals.compute import compute_signals, errors_of
from lipt.core.signals.signals import Signals
from lipt.core.signals.stored import STORAGE_LIMITS, StorageLimits
from tests.core.signals.made_up import CPU, IMAGE, made_up_dataset, made_up_network


def painted(dataset: Dataset, value: int, white: set[int]) -> Dataset:
    """The data set with every pixel of one value, and some images white."""
    assert isinstance(dataset.inputs, ImageSpec)
    images_NCHW = torch.full((len(dataset), *dataset.inputs.shape), value, dtype=torch.uint8)
    images_NCHW[sorted(white)] = 255
    return in_memory(
        dataset.source, dataset.class_names, dataset.labels_N, dataset.fingerprint, images_NCHW
    )


def signals_of(
    model: nn.Module,
    dataset: Dataset,
    *,
    batch_size: int = 16,
    limits: StorageLimits = STORAGE_LIMITS,
) -> Signals:
    batches = Batches(dataset, IMAGE, CPU, batch_size, lambda *_: None)
    return compute_signals(model, batches, limits=limits)


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


def test_errors_by_hand() -> None:
    # softmax of (0, ln 3) is (1/4, 3/4).
    logits = torch.tensor([[1.0, 3.0], [1.0, 3.0]]).log()
    errors = errors_of(logits, torch.tensor([0, 1]))
    torch.testing.assert_close(errors, torch.tensor([[-0.75, 0.75], [0.25, -0.25]]))


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


@pytest.mark.parametrize("batch_size", [1, 7, 128])
def test_batch_size_does_not_matter(batch_size: int) -> None:
    model, dataset = made_up_network(), made_up_dataset()
    expected = signals_of(model, dataset, batch_size=len(dataset))
    signals = signals_of(model, dataset, batch_size=batch_size)
    torch.testing.assert_close(signals.errors_NC, expected.errors_NC, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(signals.features_ND, expected.features_ND, rtol=1e-5, atol=1e-6)
    for strategy in (el2n, grand):
        chosen, same = strategy(signals, 10), strategy(expected, 10)
        assert chosen.indices_K.tolist() == same.indices_K.tolist()


def test_a_last_small_batch_gets_no_larger_gradients() -> None:
    # The defect: the loss is a batch's mean, so its gradient by the logits is e / B, and scaled
    # back by the nominal B = 128 the last 8 of 136 examples weigh 16 times too much.
    model, dataset = made_up_network(), made_up_dataset(136)
    signals = signals_of(model, dataset, batch_size=128)
    scale_N = torch.ones(136)
    scale_N[128:] = 128 / 8
    defective_N = last_layer_norms(signals) * scale_N
    assert sorted(defective_N.topk(8).indices.tolist()) == list(range(128, 136))
    true_N = last_layer_gradients(model, dataset).norm(dim=1)
    found = last_layer_norms(signals).topk(8).indices.tolist()
    assert sorted(found) == sorted(true_N.topk(8).indices.tolist())
    assert set(found) != set(range(128, 136))


def test_rows_follow_the_ids() -> None:
    model, dataset = made_up_network(), made_up_dataset()
    ids = torch.tensor([31, 4, 17])
    some = compute_signals(model, Batches(dataset, IMAGE, CPU, 2, lambda *_: None, ids))
    taken = signals_of(model, dataset).take(ids)
    assert torch.equal(some.labels_N, taken.labels_N)
    torch.testing.assert_close(some.errors_NC, taken.errors_NC)
    torch.testing.assert_close(some.features_ND, taken.features_ND)


def test_signals_in_a_mapped_file_are_the_same_and_outlive_its_name(tmp_path: Path) -> None:
    model, dataset = made_up_network(), made_up_dataset()
    batches = Batches(dataset, IMAGE, CPU, 16, lambda *_: None)
    mapped = compute_signals(
        model, batches, limits=StorageLimits(memory_bytes=0), scratch=tmp_path / "scratch"
    )
    assert list((tmp_path / "scratch").iterdir()) == []
    held = signals_of(model, dataset)
    assert torch.equal(mapped.errors_NC, held.errors_NC)
    assert torch.equal(mapped.features_ND, held.features_ND)
    mapped.save(tmp_path / "signals")
    assert torch.equal(Signals.load(tmp_path / "signals").errors_NC, held.errors_NC)


def test_evaluation_mode_and_restored_flags() -> None:
    model = made_up_network()
    model.train()
    generator = torch.get_rng_state()
    first, again = signals_of(model, made_up_dataset()), signals_of(model, made_up_dataset())
    assert torch.equal(first.features_ND, again.features_ND)
    assert all(module.training for module in model.modules())
    assert torch.equal(torch.get_rng_state(), generator)


def test_outputs_that_are_not_finite_name_their_ids() -> None:
    model, dataset = made_up_network(), made_up_dataset(20)
    dataset = painted(dataset, 100, {3, 5})

    class Overflow(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.where(x.amax(dim=(1, 2, 3), keepdim=True) > 1.5, float("inf"), x)

    with pytest.raises(
        SignalsError,
        match=r"outputs are not finite for 2 of 8 examples, with ids 3, 5\. .*learning_rate",
    ):
        signals_of(nn.Sequential(Overflow(), model), dataset, batch_size=8)


def test_a_long_list_of_ids_is_cut() -> None:
    model = made_up_network()
    nn.init.constant_(list(model.parameters())[-1], float("nan"))
    with pytest.raises(
        SignalsError, match=r"for 16 of 16 examples, with ids 0, 1, 2, 3, 4, \.\.\."
    ):
        signals_of(model, made_up_dataset())


def test_a_model_without_a_linear_layer_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no nn\.Linear layer"):
        signals_of(nn.Sequential(nn.Conv2d(3, 3, 6), nn.Flatten()), made_up_dataset())


def test_what_is_over_a_limit_is_kept_in_half_precision(tmp_path: Path) -> None:
    model, dataset = made_up_network(), made_up_dataset()
    exact = signals_of(model, dataset)
    # 40 examples of 3 errors and 64 features take 480 and 10,240 bytes in float32.
    for error_bytes, feature_bytes in ((479, 10_240), (480, 10_239), (1, 1)):
        signals = signals_of(model, dataset, limits=StorageLimits(error_bytes, feature_bytes))
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


def test_features_too_large_for_half_precision_name_their_ids() -> None:
    model, dataset = nn.Sequential(nn.Flatten(), Scaled(), nn.Linear(108, 3)), made_up_dataset(20)
    nn.init.zeros_(next(model.parameters()))
    dataset = painted(dataset, 128, {3, 5})
    assert signals_of(model, dataset).features_ND.isfinite().all()
    with pytest.raises(SignalsError, match=r"kept in float16, are not finite .* ids 3, 5\."):
        signals_of(model, dataset, batch_size=20, limits=StorageLimits(feature_bytes=1))


class Scaled(nn.Module):
    """Features of up to 2 become ones that float16 has no room for."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 50_000
