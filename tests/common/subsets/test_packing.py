from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipt.common.errors import SubsetError
from lipt.common.subsets.difference import Examples
from lipt.common.subsets.packing import (
    RUN_EXAMPLES,
    PackedRun,
    pack,
    packed_bytes,
    runs_of,
    unpack,
)

ONE = struct.pack("<f", 1.0)


def examples(indices: list[int] | range, weights: list[float] | None = None) -> Examples:
    given = [1.0] * len(indices) if weights is None else weights
    return Examples(np.array(indices, np.int64), np.array(given, np.float32))


def size(run: PackedRun) -> int:
    return len(run.high) + len(run.low) + len(run.weights)


def random_tenth(count: int, of: int) -> Examples:
    chosen = np.random.default_rng(0).choice(of, count, replace=False)
    return examples(np.sort(chosen).tolist())


def test_a_run_without_gaps_is_a_bitmap_of_ones() -> None:
    assert pack(examples(range(7, 17))) == PackedRun(7, 0, b"\xff\x03", b"", ONE)


def test_a_dense_run_is_the_bitmap_of_what_was_chosen() -> None:
    # 3, 4, 6 and 10: bits 0, 1, 3 and 7.
    assert pack(examples([3, 4, 6, 10])) == PackedRun(3, 0, bytes([0b10001011]), b"", ONE)


def test_a_sparse_run_has_its_low_bits_in_planes() -> None:
    # Left out are 0, 9, 18 and 30. With L = 3 these are 0, 1, 2 and 3 in `high`, at the bits 0, 2,
    # 4 and 6, and 0, 1, 2 and 6 in `low`: 0100 and 0011 of the planes 0, 1; 0001 of 2. That is
    # 4 + 3 + 3 x 4 = 19 bits; L = 2 takes 4 + 7 + 8, as many, and is the first.
    packed = pack(examples([5, 15, 25, 38]))
    assert packed.low_bits == 2
    # 0, 9 >> 2 = 2, 18 >> 2 = 4, 30 >> 2 = 7: bits 0, 3, 6 and 10; low 0, 1, 2 and 2.
    assert packed.high == bytes([0b01001001, 0b00000100])
    assert packed.low == bytes([0b0010, 0b1100])
    assert unpack(packed).indices_K.tolist() == [5, 15, 25, 38]
    # Any other L is read as well.
    wider = PackedRun(5, 3, bytes([0b01010101]), bytes([0b0010, 0b1100, 0b1000]), ONE)
    assert unpack(wider).indices_K.tolist() == [5, 15, 25, 38]


def test_weights_are_one_where_all_have_the_same_bits() -> None:
    assert pack(examples([1, 2], [0.5, 0.5])).weights == struct.pack("<f", 0.5)
    assert pack(examples([1, 2], [0.5, 0.25])).weights == struct.pack("<2f", 0.5, 0.25)
    # Equal as numbers, and of another digest.
    assert pack(examples([1, 2], [0.0, -0.0])).weights == struct.pack("<2f", 0.0, -0.0)


@given(
    st.sets(st.integers(0, 2**62 - 1) | st.integers(0, 300), min_size=1, max_size=200),
    st.floats(width=32, allow_nan=False),
    st.booleans(),
)
def test_what_is_unpacked_is_what_was_packed(indices: set[int], weight: float, same: bool) -> None:
    weights = [weight if same else weight * (place % 2) for place in range(len(indices))]
    run = examples(sorted(indices), weights)
    packed = pack(run)
    found = unpack(packed)
    assert found.indices_K.tobytes() == run.indices_K.tobytes()
    assert found.weights_K.tobytes() == run.weights_K.tobytes()
    assert packed_bytes(run) == size(packed)
    assert 8 * len(packed.high) < 3 * len(indices) + 8


def test_a_random_tenth_takes_five_bits_each() -> None:
    # A tenth of 655,360: 9 of 10 left out, so L = 3 takes 1 + 9/8 + 3 bits each.
    packed = pack(random_tenth(65_536, 655_360))
    assert packed.low_bits == 3
    assert size(packed) == pytest.approx(65_536 * 5.125 / 8, rel=0.001)


def test_a_hundredth_takes_less_than_nine_bits_each() -> None:
    # 99 of 100 left out: L = 6 takes 1 + 99/64 + 6 bits.
    packed = pack(random_tenth(65_536, 6_553_600))
    assert size(packed) == pytest.approx(65_536 * 8.547 / 8, rel=0.001)


def test_all_examples_take_a_bit_each() -> None:
    assert size(pack(examples(range(65_536)))) == 65_536 // 8 + 4


def test_runs_begin_where_examples_are_missing() -> None:
    assert list(runs_of(140_000)) == [
        slice(0, 65_536),
        slice(65_536, 131_072),
        slice(131_072, 140_000),
    ]
    assert list(runs_of(140_000, 100_000)) == [slice(100_000, 140_000)]
    assert list(runs_of(0)) == list(runs_of(5, 5)) == []


def test_sizes_are_those_of_all_runs() -> None:
    run = random_tenth(140_000, 1_400_000)
    packed = [
        pack(Examples(run.indices_K[place], run.weights_K[place])) for place in runs_of(140_000)
    ]
    assert packed_bytes(run) == sum(map(size, packed))


GOOD = PackedRun(5, 2, bytes([0b01001001, 0b00000100]), bytes([0b0010, 0b1100]), ONE)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"low_bits": 63}, "63 low bits"),
        ({"low_bits": 2**32 - 1}, "4294967295 low bits"),
        ({"low_bits": 3}, "2 bytes are not 3 planes of 4 bits"),
        ({"low": b""}, "0 bytes are not 2 planes"),
        ({"low": bytes(3)}, "3 bytes are not 2 planes"),
        ({"high": b""}, "0 examples"),
        ({"high": bytes(100)}, "0 examples"),
        ({"high": bytes(24_577)}, "bitmap of 24577 bytes"),
        ({"high": b"\xff" * 8_193, "low_bits": 0, "low": b""}, "65544 examples"),
        ({"weights": b""}, "0 bytes are no weights of 4 examples"),
        ({"weights": bytes(12)}, "12 bytes are no weights of 4 examples"),
        ({"first": -1}, "from -1 on leave the range"),
        ({"first": 2**63 - 3}, "leave the range"),
        ({"low_bits": 62, "low": bytes(62)}, "leave the range"),
    ],
)
def test_what_cannot_be_a_run_is_refused(changes: dict[str, object], complaint: str) -> None:
    unpack(GOOD)
    with pytest.raises(SubsetError, match=f"{complaint}.*Ask again"):
        unpack(replace(GOOD, **changes))  # type: ignore[arg-type]


def test_the_largest_index_that_the_bits_allow_is_a_row_number() -> None:
    # The last of four has 7 in `high`: with two low bits up to 31 are left out before it.
    last = 2**63 - 1 - 31 - 3
    assert unpack(replace(GOOD, first=last)).indices_K[0] == last
    with pytest.raises(SubsetError, match="leave the range"):
        unpack(replace(GOOD, first=last + 1))


@given(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 70),
    st.binary(max_size=40),
    st.binary(max_size=60),
    st.binary(max_size=16),
)
def test_garbage_is_refused_or_a_run_of_no_more_than_its_bits(
    first: int, low_bits: int, high: bytes, low: bytes, weights: bytes
) -> None:
    try:
        found = unpack(PackedRun(first, low_bits, high, low, weights))
    except SubsetError:
        return
    assert 1 <= len(found) <= min(8 * len(high), RUN_EXAMPLES)
    assert found.indices_K.min() >= 0
    assert len(found.weights_K) == len(found)
