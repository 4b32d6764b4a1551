import pickle
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.numpy
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional

from lipt.common.errors import FeaturesError, SignalsError
from lipt.common.tensor_files import pack
from lipt.core.passes import Batches
from lipt.core.selection.strategies.scores import last_layer_norms
from lipt.core.signals import compute
from lipt.core.signals import signals as stored
from lipt.core.signals.compute import (
    compute_values,
    default_chunk_size,
    errors_of,
    full_gradient_norms,
    per_example_norms,
    signals_from,
)
from lipt.core.signals.dynamics import Dynamics
from lipt.core.signals.signals import (
    Signals,
    StorageLimits,
    UserFeatures,
    features_of_pairs,
    features_of_tensors,
    labels_only,
    moved,
    num_bytes,
    probabilities_of,
    read_user_features,
    required,
)
from lipt.core.tasks import ScoredValues
from lipt.data.dataset import Dataset
from lipt.data.inputs.model_input import to_model_input
from lipt.data.loading import open_dataset
from lipt.data.targets.values import SingleLabel
from tests.core.selection.builders import full_signals, half
from tests.core.signals.made_up import CPU, IMAGE, made_up_dataset, made_up_network
from tests.sentences import Reader


@pytest.mark.parametrize("bias", [True, False])
def test_a_saved_file_is_read_back_exactly(tmp_path: Path, *, bias: bool) -> None:
    signals = replace(full_signals([0, 1, 2, 0, 1]), has_bias=bias)
    signals.save(tmp_path / "signals")
    loaded = Signals.load(tmp_path / "signals")
    assert loaded.has_bias == bias
    for name in ("errors_NC", "features_ND", "labels_N", "gradient_norms_N"):
        assert torch.equal(getattr(loaded, name), getattr(signals, name)), name
    assert [path.name for path in tmp_path.iterdir()] == ["signals"]


def test_take_reorders_every_value() -> None:
    signals = replace(half(full_signals([0, 1, 2, 0, 1])), has_bias=False)
    rows = torch.tensor([3, 0])
    taken = signals.take(rows)
    assert taken.errors_NC.dtype == taken.features_ND.dtype == torch.float32
    assert torch.equal(taken.errors_NC, signals.errors_NC[rows].float())
    for name in ("labels_N", "gradient_norms_N", "duplicate_group_N"):
        assert torch.equal(getattr(taken, name), getattr(signals, name)[rows]), name
    margins_NLT = Dynamics.of(signals).margins_NLT
    assert torch.equal(Dynamics.of(taken).margins_NLT, margins_NLT[rows])
    assert taken.validation is signals.validation
    assert not taken.has_bias


def test_probabilities_are_errors_plus_one_at_the_label() -> None:
    errors_NC = torch.tensor([[-0.75, 0.5, 0.25], [0.5, 0.25, -0.75]])
    labels_N = torch.tensor([0, 2])
    expected = [[0.25, 0.5, 0.25], [0.5, 0.25, 0.25]]
    assert probabilities_of(errors_NC, labels_N).tolist() == expected
    double_11NC = probabilities_of(errors_NC[None, None], labels_N[None, None], torch.float64)
    assert double_11NC.tolist() == [[expected]]
    assert double_11NC.dtype == torch.float64
    # What was given is as it was.
    assert errors_NC[0, 0] == -0.75


def test_missing_values_are_an_error() -> None:
    signals = labels_only(torch.tensor([0]))
    with pytest.raises(SignalsError, match="the signals have no norms: compute them first"):
        required(signals.gradient_norms_N, "norms")
    assert required(signals.labels_N, "labels") is signals.labels_N


def test_every_tensor_counts_in_bytes_and_moves() -> None:
    signals = full_signals([0, 1, 2])
    # A row of 3 errors, 6 features and as many of a pair, a norm, a label and a picture; of
    # 3 learners 12 probabilities and margins, 3 norms, a disagreement, and whose shard it is in.
    row_bytes = 4 * (3 + 6 + 6 + 1) + 8 + 8 + 4 * (12 + 12 + 3 + 1) + 2
    assert signals.validation is not None
    alone = replace(signals, validation=None, targeted=None)
    held = replace(signals.validation, targeted=None)
    assert num_bytes(alone) == 3 * row_bytes
    assert num_bytes(replace(alone, validation=held)) == (3 + 30) * row_bytes
    assert num_bytes(signals) > num_bytes(replace(signals, targeted=None))
    meta = torch.device("meta")
    there = moved(signals, meta)
    assert there.errors_NC.device == required(there.dynamics, "learners").margins_NLT.device == meta
    assert required(there.validation, "validation").features_ND.device == meta
    assert there.second_errors_NC is None
    assert there.has_bias


def read(path: Path, num_examples: int = 6) -> UserFeatures:
    return read_user_features(path, num_examples=num_examples, max_bytes=100_000)


def write(path: Path, **tensors: Tensor) -> Path:
    safetensors.torch.save_file(tensors, path)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "features.safetensors"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_any_floating_point_type_becomes_float32(path: Path, dtype: torch.dtype) -> None:
    given = torch.arange(12.0).reshape(6, 2).to(dtype)
    found = read(write(path, features=given))
    assert found.paired_features_NP is None
    assert found.features_ND.dtype == torch.float32
    assert torch.equal(found.features_ND, torch.arange(12.0).reshape(6, 2))


def test_tensors_in_memory_are_checked_as_those_of_a_file(path: Path) -> None:
    given = {"features": 1e9 * torch.randn(3, 6).T, "paired_features": torch.rand(6, 2).half()}
    found, of_file = features_of_tensors(given, 6), read(write(path, **_contiguous(given)))
    assert torch.equal(found.features_ND, of_file.features_ND)
    assert found.paired_features_NP is not None
    assert of_file.paired_features_NP is not None
    assert torch.equal(found.paired_features_NP, of_file.paired_features_NP)
    given["features"][4, 1] = torch.inf
    with pytest.raises(FeaturesError, match=r"not finite in float32, for 1 of 6 .* ids 4: inf"):
        features_of_tensors(given, 6)
    with pytest.raises(FeaturesError, match=r"'features' has the shape \[6, 3\]"):
        features_of_tensors(given, 7)


def _contiguous(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def test_large_signals_are_stored_as_float16(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(path, features=torch.full((6, 2), 0.5))
    for feature_bytes, dtype in ((48, torch.float32), (47, torch.float16)):
        monkeypatch.setattr(stored, "STORAGE_LIMITS", StorageLimits(feature_bytes=feature_bytes))
        assert read(path).features_ND.dtype == dtype
    write(path, features=torch.tensor([[1.0] * 3, [70_000.0] * 3, *[[1.0] * 3] * 4]))
    with pytest.raises(
        FeaturesError, match=r"not finite in float16, .* ids 1: 70000 in .*6\.55e\+04"
    ):
        read(path)


@pytest.mark.parametrize("value", [1e37, -2e15, float("nan")])
def test_values_whose_squares_overflow_are_refused_with_the_remedy(
    path: Path, value: float
) -> None:
    features = torch.ones(6, 2)
    features[4, 1] = value
    with pytest.raises(
        FeaturesError, match=r"too large .* 1 of 6 .* ids 4: .* in column 1 .*below 1e\+15"
    ):
        read(write(path, features=features))


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"features": torch.zeros(5, 2)}, r"shape \[5, 2\]; .* 6 examples need \[6, d\]"),
        ({"features": torch.zeros(6)}, r"shape \[6\]; .* need \[6, d\]"),
        ({"features": torch.zeros(6, 0)}, r"shape \[6, 0\]; .* d >= 1"),
        ({"features": torch.zeros(6, 1, 1)}, r"shape \[6, 1, 1\]"),
        ({"features": torch.zeros(6, 2, dtype=torch.int64)}, r"is int64\[6, 2\]. Convert"),
        ({"embeddings": torch.zeros(6, 2)}, r"holds 'embeddings'\. Write .*'features': N x d"),
        ({"paired_features": torch.zeros(6, 2)}, r"holds 'paired_features'"),
        (
            {"features": torch.zeros(6, 2), "labels": torch.zeros(6, 2)},
            r"holds '(features|labels)', '(features|labels)'\. Write",
        ),
        (
            {"features": torch.zeros(6, 2), "paired_features": torch.zeros(7, 2)},
            r"'paired_features' has the shape \[7, 2\]",
        ),
    ],
)
def test_shape_mismatches_are_refused(path: Path, tensors: dict[str, Tensor], words: str) -> None:
    with pytest.raises(FeaturesError, match=words):
        read(write(path, **tensors))


def test_values_that_are_not_finite_name_their_ids(path: Path) -> None:
    features = torch.zeros(8, 2)
    features[[1, 4], 1] = torch.tensor([float("nan"), float("inf")])
    with pytest.raises(FeaturesError, match=r"for 2 of 8 examples, with ids 1, 4: nan in column 1"):
        read(write(path, features=features), num_examples=8)
    with pytest.raises(
        FeaturesError, match=r"for 8 of 8 .* ids 0, 1, 2, 3, 4 and 3 more: 1e\+300 in col"
    ):
        read(write(path, features=torch.full((8, 1), 1e300, dtype=torch.float64)), num_examples=8)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (pickle.dumps({"features": [1.0]}), "is not a safetensors file"),
        (b"", "is not a safetensors file"),
        (b"\xff" * 100, "is not a safetensors file"),
        (bytes(200_000), "200000 bytes; at most 100000"),
    ],
)
def test_other_files_are_refused_unopened(path: Path, content: bytes, words: str) -> None:
    path.write_bytes(content)
    with pytest.raises(FeaturesError, match=words) as refusal:
        read(path)
    assert "model" not in refusal.value.message
    assert "'features': N x d" in refusal.value.message


def test_a_feature_file_of_pairs_has_both_halves(tmp_path: Path) -> None:
    examples = {"X": torch.ones(3, 2, 2), "y": torch.tensor([0, 1, 0])}
    (tmp_path / "alone").write_bytes(pack(examples))
    (tmp_path / "pairs").write_bytes(pack(examples | {"paired_features": torch.zeros(3, 5)}))
    assert features_of_pairs(open_dataset(f"features:{tmp_path / 'alone'}")) is None
    pairs = features_of_pairs(open_dataset(f"features:{tmp_path / 'pairs'}"))
    assert pairs is not None
    assert pairs.features_ND.shape == (3, 4)
    assert pairs.paired_features_NP is not None
    assert pairs.paired_features_NP.shape == (3, 5)


def signals_of(model: nn.Module, dataset: Dataset, scratch: Path | None = None) -> Signals:
    batches = Batches(dataset, IMAGE, CPU, 16)
    computed = compute_values(model, batches, ScoredValues.SIGNALS, scratch=scratch)
    return signals_from(computed, model, dataset, batches.ids_N)


def gradients_of(
    logits: Callable[[int], Tensor], labels_N: Tensor, parameters: Iterable[Tensor]
) -> Tensor:
    """One autograd call for each example's own loss; the parameters in a row."""
    rows, parameters = [], list(parameters)
    for row, label in enumerate(labels_N):
        loss = functional.cross_entropy(logits(row), label[None])
        parts = torch.autograd.grad(loss, parameters)
        rows.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(rows)


def gradients_by(model: nn.Module, dataset: Dataset, of: nn.Module) -> Tensor:
    def logits(row: int) -> Tensor:
        found: Tensor = model(to_model_input(dataset.images(torch.tensor([row])), IMAGE, CPU))
        return found

    model.eval()
    return gradients_of(logits, dataset.labels_N, of.parameters())


def test_the_error_of_a_confident_prediction_is_exact() -> None:
    # p of the wrong class is e^-20 / (1 + e^-20) = 2.0611536e-9; 1 - p rounds to 1 in float32.
    errors = errors_of(torch.tensor([[20.0, 0.0]]), torch.tensor([0]))
    assert errors[0].tolist() == pytest.approx([-2.0611536e-9, 2.0611536e-9], rel=1e-6)


@pytest.mark.parametrize("bias", [True, False])
def test_factored_norms_and_products_equal_autograd_s(*, bias: bool) -> None:
    model, dataset = made_up_network(bias=bias), made_up_dataset()
    gradients_NP = gradients_by(model, dataset, model[-1])
    signals = signals_of(model, dataset)
    assert signals.has_bias == bias
    torch.testing.assert_close(
        last_layer_norms(signals), gradients_NP.norm(dim=1), rtol=1e-5, atol=1e-5
    )
    errors_NC, features_ND = signals.errors_NC, signals.features_ND
    products_NN = (errors_NC @ errors_NC.T) * (features_ND @ features_ND.T + float(bias))
    torch.testing.assert_close(products_NN, gradients_NP @ gradients_NP.T, rtol=1e-5, atol=1e-5)


def test_mapped_signals_are_the_same_and_outlive_their_file(
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


def test_above_a_limit_signals_are_float16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_keyword_models_have_autograd_s_norms(*, hesitant: bool) -> None:
    torch.manual_seed(0)
    plain = Reader(3).eval()
    model: nn.Module = plain
    if hesitant:
        model = Hesitant().eval()
        model.load_state_dict({f"reader.{name}": item for name, item in plain.state_dict().items()})
    inputs = {"tokens": torch.tensor([[1, 2], [3, 0], [4, 5]]), "figures": torch.rand(3, 3)}
    labels_B = torch.tensor([0, 2, 1])
    expected_BP = gradients_of(
        lambda row: plain(*(values[row : row + 1] for values in inputs.values())),
        labels_B,
        plain.parameters(),
    )
    found_B = per_example_norms(model, SingleLabel(3), inputs, labels_B)
    torch.testing.assert_close(found_B, expected_BP.norm(dim=1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("chunk_size", [1, 7, NUM_EXAMPLES])
def test_gradient_norms_equal_autograd_s_for_any_chunk_size(chunk_size: int) -> None:
    model, dataset = made_up_network(), made_up_dataset(NUM_EXAMPLES)
    expected = gradients_by(model, dataset, model).norm(dim=1)
    found = full_gradient_norms(model, Batches(dataset, IMAGE, CPU, chunk_size))
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
