"""Data sets whose examples have labels or numbers: sources, fingerprints, shards."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from lipt.common.data import Dataset, open_dataset, open_shard, pack_shard
from lipt.common.data.input_format import input_format
from lipt.common.data.loading import load
from lipt.common.data.sources.user_data import rows_of_data
from lipt.common.errors import DataError
from lipt.common.targets.values import MultiLabel, Regression, SingleLabel

VECTORS = torch.arange(12.0).reshape(6, 2)
NUMBERS = [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]


def with_targets(targets: Sequence[object]) -> Dataset:
    return load(rows_of_data("mine:data", list(zip(VECTORS, targets, strict=True))))


def test_lists_of_names_are_labels_of_images() -> None:
    names = [["a", "b"], [], ["b"], ["a"], ["b"], ["b"]]
    pairs = [(np.full((4, 4), row, np.uint8), has) for row, has in enumerate(names)]
    rows = rows_of_data("mine:data", pairs)
    assert rows.targets is not None
    assert rows.targets.target == MultiLabel(2)
    assert rows.class_names == ("a", "b", "none")
    assert rows.labels_N.tolist() == [0, 2, 1, 0, 1, 1]


def test_every_target_counts_in_the_fingerprint() -> None:
    changed = [*NUMBERS[:5], 61.0]
    first, again, other = map(with_targets, (list(NUMBERS), list(NUMBERS), list(changed)))
    # The quantiles are the same.
    assert torch.equal(first.labels_N, other.labels_N)
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert first.full_fingerprint == again.full_fingerprint != other.full_fingerprint


@pytest.mark.parametrize(
    ("targets", "dtype"),
    [
        (list(NUMBERS), torch.float32),
        ([[0, 1], [1, 1], [0, 0], [1, 0], [0, 1], [1, 1]], torch.uint8),
    ],
)
def test_a_shard_has_targets_in_place_of_labels(targets: list[object], dtype: torch.dtype) -> None:
    data = with_targets(targets)
    inputs, ids = input_format(data, torch.arange(6), 0), torch.tensor([4, 1])
    shard = open_shard(pack_shard(data, ids), inputs, num_examples=2, target=data.target)
    assert shard.targets_N.dtype == dtype
    assert torch.equal(shard.targets_N, data.targets_N[ids])
    for other in (SingleLabel(6), MultiLabel(5)):
        with pytest.raises(DataError, match="the shard"):
            open_shard(pack_shard(data, ids), inputs, num_examples=2, target=other)


def test_a_shards_labels_have_to_be_0_or_1() -> None:
    data = with_targets([[0, 1], [1, 1], [0, 0], [1, 0], [0, 1], [1, 1]])
    packed, inputs = pack_shard(data, torch.tensor([0])), input_format(data, torch.arange(6), 0)
    assert packed.endswith(bytes([0, 1]))
    with pytest.raises(DataError, match="'targets' has values from 1 to 7, outside"):
        open_shard(packed[:-2] + b"\7\1", inputs, num_examples=1, target=data.target)


def test_a_table_has_numbers_in_the_columns_that_are_named(write: Callable[..., Path]) -> None:
    lines = [f"{row},{row % 3},{row * 1.5},{row % 2}" for row in range(10)]
    path = write("\n".join(["a,b,price,odd", *lines]))
    data = open_dataset(f"csv:{path}?target=price&drop=odd")
    assert isinstance(data.target, Regression)
    assert data.targets_N.flatten().tolist() == [row * 1.5 for row in range(10)]
    # No part of what it is told by.
    assert str(data.inputs) == "float32[2]"
    assert data.class_names[0] == "price up to 0"


@pytest.mark.parametrize(
    ("labels", "target"),
    [
        (np.array(NUMBERS), Regression((35.0,), (np.std(NUMBERS).item(),))),
        (np.array([[0, 1], [1, 0]] * 3), MultiLabel(2)),
        (np.array([0, 1] * 3), SingleLabel(2)),
    ],
)
def test_a_file_of_features_says_by_its_labels_what_they_are(
    tmp_path: Path, labels: np.ndarray, target: object
) -> None:
    np.savez(tmp_path / "f.npz", X=VECTORS.numpy(), y=labels)
    assert open_dataset(f"features:{tmp_path / 'f.npz'}").target == target
