from __future__ import annotations

import math
import pickle
from pathlib import Path

import pytest
import torch

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.store import BlobStore
from lipt.common.errors import LearnerRejectedError
from lipt.common.tensor_files import Weights, specs_of
from lipt.coordinator.dispatch.intake import Reference, check_learner, require_report, trained_norm
from lipt.coordinator.state.records import LearnerResult
from lipt.core.pretraining.results import pack_initial
from lipt.models.encodings import encode_sparse

STATISTICS = {
    "bn.running_var": torch.ones(2),
    "bn.num_batches_tracked": torch.tensor(5),
    "seen": torch.arange(3, dtype=torch.int32),
    "mask": torch.ones(2, dtype=torch.bool),
}
WEIGHTS = {"w": torch.tensor([[1.0, 0.0], [0.0, 2.0]]), "steps": torch.tensor(3)}


def check(
    folder: Path, learner: Weights | bytes, theta: Reference | None = None, **expected: float
) -> None:
    path = folder / "learner"
    path.write_bytes(learner if isinstance(learner, bytes) else encode_sparse(learner))
    check_learner(path, theta or Reference(specs_of(WEIGHTS)), **expected)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite_are_rejected_by_name(tmp_path: Path, value: float) -> None:
    bad = {**WEIGHTS, "w": torch.tensor([[1.0, value], [0.0, 2.0]])}
    with pytest.raises(LearnerRejectedError, match="'w'"):
        check(tmp_path, bad)


@pytest.mark.parametrize(
    "bad",
    [
        {"w": WEIGHTS["w"]},
        {**WEIGHTS, "extra": torch.zeros(1)},
        {**WEIGHTS, "w": torch.zeros(2, 3)},
        {**WEIGHTS, "w": WEIGHTS["w"].double()},
    ],
    ids=["missing", "extra", "shape", "dtype"],
)
def test_tensors_of_no_model_are_rejected(tmp_path: Path, bad: dict[str, torch.Tensor]) -> None:
    with pytest.raises(LearnerRejectedError, match="the model has"):
        check(tmp_path, bad)


def test_pickle_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(LearnerRejectedError, match="is not a safetensors file"):
        check(tmp_path, pickle.dumps(WEIGHTS))


def test_the_norm_is_of_all_trained_weights() -> None:
    weights = {
        "w": torch.tensor([[3.0, 0.0], [0.0, 0.0]]),
        "b": torch.tensor([4.0]),
        "bn.running_mean": torch.tensor([1e9]),
        "bn.running_var": torch.tensor([1e9]),
        "bn.num_batches_tracked": torch.tensor(7),
    }
    assert trained_norm(weights) == 5.0
    assert trained_norm({"w": torch.full((4,), 1e30)}) == pytest.approx(2e30)


def test_a_norm_of_100_times_theta_star_is_accepted(tmp_path: Path) -> None:
    theta = {"w": torch.tensor([[3.0, 0.0], [0.0, 4.0]])}
    learner = {"w": 100 * theta["w"]}
    check(tmp_path, learner, Reference(specs_of(theta), norm=5.0))
    with pytest.raises(LearnerRejectedError, match=r"theta\*'s 4\.99.*learning_rate"):
        check(tmp_path, learner, Reference(specs_of(theta), norm=4.99))


def test_adapters_that_start_at_zero_are_measured_by_the_frozen_weights(tmp_path: Path) -> None:
    theta = {"w": torch.tensor([[3.0, 4.0]]), "b": torch.zeros(1, 2)}
    blobs = BlobStore(tmp_path / "blobs", max_blob_bytes=2**20)
    reference = Reference.read(blobs, blobs.put_bytes(pack_initial(theta, ["w"])), 10)
    assert (reference.norm, reference.specs.keys()) == (5.0, {"b"})
    check(tmp_path, {"b": torch.tensor([[300.0, 400.0]])}, reference)
    with pytest.raises(LearnerRejectedError, match="norm of"):
        check(tmp_path, {"b": torch.tensor([[301.0, 400.0]])}, reference)


def test_a_zero_theta_star_sets_no_norm_limit(tmp_path: Path) -> None:
    check(tmp_path, WEIGHTS, Reference(specs_of(WEIGHTS), norm=0.0))


@pytest.mark.parametrize(
    ("num_kept", "taken"), [(90, True), (94, True), (86, True), (100, False), (50, False)]
)
def test_density_other_than_the_task_s_is_rejected(
    tmp_path: Path, num_kept: int, taken: bool
) -> None:
    kernel = torch.zeros(100)
    kernel[:num_kept] = 1.0
    # What pruning leaves alone is not counted.
    weights = {"w": kernel.reshape(10, 10), "b": torch.zeros(1000), "steps": torch.tensor(0)}
    theta = Reference(specs_of(weights))
    check(tmp_path, weights, theta)
    if taken:
        check(tmp_path, weights, theta, density=0.9)
        return
    with pytest.raises(LearnerRejectedError, match=rf"keeps {num_kept / 100:.4f}.*says 0\.9000"):
        check(tmp_path, weights, theta, density=0.9)


@pytest.mark.parametrize(
    ("loss", "seconds", "received"),
    [
        (math.nan, 1.0, 0),
        (math.inf, 1.0, 0),
        (1.0, math.nan, 0),
        (1.0, math.inf, 0),
        (1.0, -1.0, 0),
        (1.0, 1.0, -1),
    ],
)
def test_impossible_report_is_rejected(loss: float, seconds: float, received: int) -> None:
    name = BlobName.of(b"learner")
    require_report(LearnerResult(blob=name, loss=1.0), 0)
    report = {"loss": loss, "train_seconds": seconds, "bytes_received": received}
    result = LearnerResult.model_construct(blob=name, **report)
    with pytest.raises(LearnerRejectedError, match="Report a finite loss"):
        require_report(result, 0)


def test_a_learner_with_a_frozen_tensor_is_rejected(tmp_path: Path) -> None:
    trained = {"w": WEIGHTS["w"]}
    theta = Reference(specs_of(trained), num_frozen=1)
    with pytest.raises(LearnerRejectedError, match=r"frozen leaves 1 of .* the other 1 alone"):
        check(tmp_path, WEIGHTS, theta)
    check(tmp_path, trained, theta, density=0.5)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"bn.running_var": torch.tensor([1.0, -0.5])}, r"a variance below 0 \(-0\.5\)"),
        ({"bn.num_batches_tracked": torch.tensor(2**63 - 1)}, "counts 9223372036854775807"),
        ({"bn.num_batches_tracked": torch.tensor(-1)}, "counts -1 batches"),
        # A learner of 8 examples has counted 8 at most.
        ({"bn.num_batches_tracked": torch.tensor(14)}, r"'bn\.num_batches_tracked' .* by 9, .* 8"),
        ({"seen": torch.tensor([0, 1, -(2**31)], dtype=torch.int32)}, "'seen' differs from theta"),
        ({"bn.num_batches_tracked": torch.tensor(13), "mask": torch.zeros(2).bool()}, ""),
    ],
)
def test_statistics_and_counts_that_no_training_gives_are_rejected(
    tmp_path: Path, changed: dict[str, torch.Tensor], words: str
) -> None:
    counts = {name: it for name, it in STATISTICS.items() if not it.is_floating_point()}
    theta = Reference(specs_of(STATISTICS), counts=counts, num_seen=8)
    learner = {**STATISTICS, **changed}
    if not words:
        check(tmp_path, learner, theta)
        return
    with pytest.raises(LearnerRejectedError, match=words):
        check(tmp_path, learner, theta)
