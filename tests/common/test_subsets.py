import gzip
import hashlib
import re
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipt.common.errors import InvalidRequestError, SubsetError
from lipt.common.subsets import Examples, overlap, pack, packed_sizes, subset_digest, unpack
from lipt.v1 import subset_pb2

LABELS = np.array([0, 0, 0, 0, 1, 1])


def test_digest_covers_indices_then_weights_then_soft_labels() -> None:
    expected = hashlib.sha256(struct.pack("<qqff", 3, 2**40, 1.0, 2.5)).hexdigest()
    assert subset_digest([3, 2**40], [1.0, 2.5]) == expected
    with pytest.raises(TypeError, match="Cannot cast"):
        subset_digest([0.5, 1.5], [1.0, 1.0])
    with_soft = hashlib.sha256(struct.pack("<qqffeeee", 3, 5, 1.0, 1.0, 0.25, 0.75, 1.0, 0.0))
    found = subset_digest([3, 5], [1.0, 1.0], np.array([[0.25, 0.75], [1.0, 0.0]], np.float16))
    assert found == with_soft.hexdigest()
    with pytest.raises(InvalidRequestError, match=r"\[2\].*soft labels of shape \[1, 2\]"):
        subset_digest([3, 5], [1.0, 1.0], np.ones((1, 2), np.float16))


@pytest.mark.parametrize(
    ("indices", "weights"),
    [
        (torch.tensor([0, 7]), torch.tensor([1.0, 0.5])),
        (np.array([0, 7], dtype=np.int32), np.array([1.0, 0.5])),
        (np.array([0, 7], dtype=">i8"), np.array([1.0, 0.5], dtype=">f4")),
    ],
)
def test_digest_ignores_the_file_format(indices: npt.ArrayLike, weights: npt.ArrayLike) -> None:
    assert subset_digest(indices, weights) == subset_digest([0, 7], [1.0, 0.5])


@pytest.mark.parametrize("indices", [[2, 1], [1, 1]])
def test_indices_that_do_not_ascend_are_refused(indices: list[int]) -> None:
    with pytest.raises(InvalidRequestError, match=r"index 1 follows . at position 1.*one once"):
        subset_digest(indices, [1.0, 1.0])


def examples(indices: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> Examples:
    indices_K = np.array(indices, np.int64)
    weights_K = np.ones(len(indices_K), np.float32) if weights is None else weights
    return Examples(indices_K, np.array(weights_K, np.float32))


def test_a_file_is_byte_planes_of_differences_and_weights() -> None:
    content = gzip.decompress(pack(examples([3, 261], [1.0, 0.5])))
    # 3 and 258 = 0x0102; 1.0 and 0.5 are 0x3f800000 and 0x3f000000.
    differences = bytes([3, 2, 0, 1, *[0] * 12])
    weights = bytes([0, 0, 0, 0, 0x80, 0x00, 0x3F, 0x3F])
    assert content == differences + weights


@given(
    st.sets(st.integers(0, 2**62), max_size=20),
    st.lists(st.floats(width=32), min_size=20, max_size=20),
    st.integers(0, 3),
    st.binary(min_size=120, max_size=120),
)
def test_packing_and_unpacking_keeps_every_bit(
    indices: set[int], weights: list[float], num_classes: int, noise: bytes
) -> None:
    packed = examples(sorted(indices), weights[: len(indices)])
    if num_classes:
        soft = np.frombuffer(noise, np.float16)[: len(packed) * num_classes]
        packed = replace(packed, soft_labels_KC=soft.reshape(len(packed), num_classes))
    content = pack(packed)
    found = unpack(content, len(packed), num_classes)
    assert len(content) in packed_sizes(len(packed), num_classes)
    assert found.indices_K.tolist() == packed.indices_K.tolist()
    assert found.weights_K.tobytes() == packed.weights_K.tobytes()
    assert found.num_classes == num_classes
    if packed.soft_labels_KC is not None and found.soft_labels_KC is not None:
        assert found.soft_labels_KC.tobytes() == packed.soft_labels_KC.tobytes()


@pytest.mark.parametrize(
    ("num_examples", "num_classes"),
    [*((30, number) for number in (-1, 0, 1, 3, 2**40)), *((n, 2) for n in (-1, 29, 31, 2**40))],
)
def test_a_file_with_other_counts_is_refused(num_examples: int, num_classes: int) -> None:
    packed = replace(examples(range(30)), soft_labels_KC=np.full((30, 2), 0.5, np.float16))
    with pytest.raises(SubsetError, match="no file of a subset"):
        unpack(pack(packed), num_examples, num_classes)


def test_unpacking_stops_at_the_announced_size() -> None:
    bomb = gzip.compress(bytes(2**24))
    assert len(bomb) > 2**24 // 1032
    for num_examples in (10, 2**9):
        with pytest.raises(SubsetError, match="cannot hold"):
            unpack(bomb, num_examples)
    with pytest.raises(SubsetError, match="does not hold 100000 examples"):
        unpack(bomb, 100_000)


@pytest.mark.parametrize("place", [0, 12, -5], ids=["header", "content", "checksum"])
def test_a_damaged_file_is_refused(place: int) -> None:
    content = bytearray(pack(examples(np.arange(0, 3000, 3), np.arange(1000))))
    content[place] ^= 0xFF
    with pytest.raises(SubsetError, match="no file of a subset"):
        unpack(bytes(content), 1000)
    with pytest.raises(SubsetError, match="no file of a subset"):
        unpack(bytes(content[:-20]), 1000)


def test_shared_examples_are_counted_with_the_count_expected_by_chance() -> None:
    found = overlap(np.array([0, 1, 4]), np.array([1, 2, 3, 4, 5]), LABELS)
    assert found.shared == 2
    assert found.jaccard == pytest.approx(2 / 6)
    # Of the first class 2 x 3 / 4, of the second 1 x 2 / 2.
    assert found.by_chance == pytest.approx(2.5)


def test_the_contract_describes_the_file_by_an_example_of_its_bytes() -> None:
    soft_labels_KC = np.array([[1, 0], [0.25, 0.75]], np.float16)
    examples = Examples(np.array([3, 260]), np.array([1, 0.5], np.float32), soft_labels_KC)
    contract = (Path(subset_pb2.__file__).parent / "subset.proto").read_text(encoding="utf-8")
    described = re.findall(
        r"//   (?:differences|weights|soft labels) +((?:[0-9a-f]{2} ?){8,})", contract
    )
    content = bytes.fromhex(" ".join(described))
    assert len(described) == 3
    assert gzip.decompress(pack(examples)) == content
    assert f"Their digest is {examples.digest}." in contract
    found = unpack(gzip.compress(content), 2, 2)
    assert found.indices_K.tolist() == [3, 260]
    assert found.weights_K.tolist() == [1, 0.5]
    assert found.soft_labels_KC is not None
    assert found.soft_labels_KC.tolist() == soft_labels_KC.tolist()
