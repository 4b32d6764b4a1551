from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipt.common.errors import SubsetError
from lipt.common.subsets.difference import (
    Difference,
    Examples,
    apply_difference,
    difference_bytes,
    examples_bytes,
    find_difference,
)
from lipt.v1 import subset_pb2


def examples(weights: dict[int, float]) -> Examples:
    indices = sorted(weights)
    return Examples(
        np.array(indices, np.int64), np.array([weights[index] for index in indices], np.float32)
    )


def difference(
    removed: Sequence[int], indices: Sequence[int], weights: Sequence[float]
) -> Difference:
    changed = Examples(np.array(indices, np.int64), np.array(weights, np.float32))
    return Difference(np.array(removed, np.int64), changed)


# Few indices, so that subsets share some; large ones, so that their bytes differ.
INDICES = st.integers(0, 30) | st.sampled_from([127, 128, 2**14, 2**35, 2**62, 2**63 - 1])
WEIGHTS = st.floats(width=32, allow_nan=False, allow_infinity=False)
SUBSETS = st.dictionaries(INDICES, WEIGHTS, max_size=20).map(examples)


@given(old=SUBSETS, new=SUBSETS)
def test_a_difference_makes_the_new_subset_of_the_old(old: Examples, new: Examples) -> None:
    made = apply_difference(old, find_difference(old, new))
    assert made.indices_K.tobytes() == new.indices_K.tobytes()
    assert made.weights_K.tobytes() == new.weights_K.tobytes()


@given(old=SUBSETS, new=SUBSETS)
def test_sizes_are_those_of_the_messages(old: Examples, new: Examples) -> None:
    found = find_difference(old, new)
    # Each field that is not empty has a tag of 1 byte and a length of 1 or 2.
    whole = subset_pb2.SubsetExamples(indices=new.indices_K, weights=new.weights_K)
    assert 0 <= whole.ByteSize() - examples_bytes(new) <= 3 * 2
    part = subset_pb2.SubsetDifference(
        removed=found.removed_R,
        indices=found.changed.indices_K,
        weights=found.changed.weights_K,
    )
    assert 0 <= part.ByteSize() - difference_bytes(found) <= 3 * 3


def test_what_goes_comes_and_changes_is_told_apart() -> None:
    found = find_difference(
        examples({1: 1.0, 2: 1.0, 3: 0.5, 4: 0.0}), examples({2: 1.0, 3: 0.25, 4: -0.0, 9: 2.0})
    )
    assert found.removed_R.tolist() == [1]
    assert found.changed.indices_K.tolist() == [3, 4, 9]
    assert found.changed.weights_K.tolist() == [0.25, 0.0, 2.0]
    assert np.signbit(found.changed.weights_K).tolist() == [False, True, False]


def test_equal_subsets_differ_by_nothing() -> None:
    same = examples({1: 1.0, 300: 0.5})
    assert difference_bytes(find_difference(same, same)) == 0


def test_sizes_by_hand() -> None:
    # 5 and 127 take one byte, 128 two, 16384 three; a weight takes 4.
    whole = examples({5: 1.0, 127: 1.0, 128: 1.0, 16384: 1.0})
    assert examples_bytes(whole) == 1 + 1 + 2 + 3 + 4 * 4
    # 5 goes (1 byte), 128 gets another weight (2 + 4).
    changed = examples({127: 1.0, 128: 2.0, 16384: 1.0})
    assert difference_bytes(find_difference(whole, changed)) == 7


def test_nothing_in_common_is_shorter_in_full() -> None:
    old, new = examples({1: 1.0, 2: 1.0}), examples({3: 1.0, 4: 1.0})
    assert difference_bytes(find_difference(old, new)) > examples_bytes(new)


@pytest.mark.parametrize(
    ("removed", "indices", "weights", "complaint"),
    [
        ([3], [], [], "removes index 3, which is not there"),
        ([2, 1], [], [], "removes are not ascending"),
        ([1, 1], [], [], "removes are not ascending"),
        ([], [7, 7], [1.0, 1.0], "sets are not ascending"),
        ([], [7, 6], [1.0, 1.0], "sets are not ascending"),
        ([2], [2], [1.0], "removes and sets index 2"),
        ([], [7, 8], [1.0], "2 indices and 1 weights"),
    ],
)
def test_a_difference_that_does_not_fit_is_refused_with_the_remedy(
    removed: list[int], indices: list[int], weights: list[float], complaint: str
) -> None:
    with pytest.raises(SubsetError, match=rf"{complaint}.*Ask again without `previous`"):
        apply_difference(examples({1: 1.0, 2: 1.0}), difference(removed, indices, weights))
