from __future__ import annotations

import hashlib
import struct

import numpy as np
import numpy.typing as npt
import pytest
import torch

from lipt.common.errors import InvalidRequestError
from lipt.common.subsets import digest as digest_module
from lipt.common.subsets.digest import first_fall, subset_digest


def test_digest_is_of_all_indices_then_all_weights() -> None:
    expected = hashlib.sha256(struct.pack("<qqff", 3, 2**40, 1.0, 2.5)).hexdigest()
    assert subset_digest([3, 2**40], [1.0, 2.5]) == expected


@pytest.mark.parametrize(
    ("indices", "weights"),
    [
        (torch.tensor([0, 7]), torch.tensor([1.0, 0.5])),
        (np.array([0, 7], dtype=np.int32), np.array([1.0, 0.5])),
        (np.array([0, 7], dtype=">i8"), np.array([1.0, 0.5], dtype=">f4")),
    ],
)
def test_digest_does_not_depend_on_how_the_numbers_are_held(
    indices: npt.ArrayLike, weights: npt.ArrayLike
) -> None:
    assert subset_digest(indices, weights) == subset_digest([0, 7], [1.0, 0.5])


@pytest.mark.parametrize("indices", [[2, 1], [1, 1]])
def test_indices_that_do_not_ascend_are_refused(indices: list[int]) -> None:
    with pytest.raises(
        InvalidRequestError, match=r"index 1 follows . at position 1.*each one once"
    ):
        subset_digest(indices, [1.0, 1.0])


def test_an_index_that_is_no_whole_number_is_refused() -> None:
    with pytest.raises(TypeError, match="Cannot cast"):
        subset_digest([0.5, 1.5], [1.0, 1.0])


def test_a_weight_per_index_is_needed() -> None:
    with pytest.raises(InvalidRequestError, match=r"\[2\].*\[1\].*one weight per index"):
        subset_digest([1, 2], [1.0])


@pytest.mark.parametrize("position", [1, 3, 4, 5, 8, 9])
def test_a_fall_is_found_wherever_blocks_end(
    position: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digest_module, "_BLOCK", 4)
    indices = np.arange(10)
    assert first_fall(indices) is None
    indices[position] = indices[position - 1]
    assert first_fall(indices) == position


def test_what_is_hashed_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[memoryview] = []

    class Recording:
        def __init__(self, column: memoryview) -> None:
            hashed.append(column)

        def update(self, column: memoryview) -> None:
            hashed.append(column)

        def hexdigest(self) -> str:
            return ""

    monkeypatch.setattr(hashlib, "sha256", Recording)
    indices, weights = np.arange(3), np.ones(3, np.float32)
    subset_digest(indices, weights)
    for column, given in zip(hashed, (indices, weights), strict=True):
        assert np.shares_memory(np.asarray(column), given)
    subset_digest(np.arange(6)[::2], weights)
    assert hashed[2].c_contiguous
