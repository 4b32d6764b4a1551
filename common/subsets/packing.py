"""Packed examples: a run of a subset in few bits, whatever its density.

A run is up to 65,536 examples that follow each other. Before the k-th of its K ascending indices
i_0 < i_1 < ... lie v_k = i_k - i_0 - k indices that were left out: numbers that never fall, and
are split in two as Elias and Fano do.

    first     i_0
    low_bits  L, from 0 to 62
    high      a bitmap, the least significant bit of a byte first: bit (v_k >> L) + k for each k
    low       L planes of K bits, each in whole bytes: plane b has bit b of v_k at k
    weights   little-endian float32: a single one where all have the same bits, else K

L is the one that makes it shortest. With L = 0 `high` is the plain bitmap of what was chosen, so
that a run without gaps takes 1 bit an index; one of ten, at random, takes 5.1 bits, one of a
hundred 8.6. Never are there more than 3 bits an index in `high`: with more of them, a larger L
would be shorter. So a reader knows what a run can hold before it unpacks anything. Indices are
below 2**62, which no data set's length comes near.

Shapes: K examples of a run.
Source: Elias 1974, "Efficient Storage and Retrieval by Content and Address of Static Files";
Fano 1971, "On the Number of Bits Required to Implement an Associative Memory".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lipt.common.errors import SubsetError
from lipt.common.subsets.difference import Examples

# Of random ones a tenth 41 KB, or 303 KB with weights; at most 9 bytes an index: below 1 MiB.
RUN_EXAMPLES = 65_536

_MOST_LOW_BITS = 62
_MOST_HIGH_BYTES = 3 * RUN_EXAMPLES // 8
_WEIGHT_BYTES = 4


@dataclass(frozen=True)
class PackedRun:
    """A run of examples as the module's docstring lays it out."""

    first: int
    low_bits: int
    high: bytes
    low: bytes
    weights: bytes


def pack(run: Examples) -> PackedRun:
    """Pack 1 to `RUN_EXAMPLES` examples, ascending and distinct."""
    places_K = np.arange(len(run))
    left_out_K = run.indices_K - run.indices_K[0]
    left_out_K -= places_K
    low_bits = _best_low_bits(len(run), int(left_out_K[-1]))
    places_K += left_out_K >> low_bits
    high = np.zeros(int(places_K[-1]) + 1, np.uint8)
    high[places_K] = 1
    planes = [
        np.packbits(((left_out_K >> bit) & 1).astype(np.uint8), bitorder="little")
        for bit in range(low_bits)
    ]
    return PackedRun(
        first=int(run.indices_K[0]),
        low_bits=low_bits,
        high=np.packbits(high, bitorder="little").tobytes(),
        low=b"".join(plane.tobytes() for plane in planes),
        weights=_shared(run.weights_K).astype("<f4", copy=False).tobytes(),
    )


def unpack(run: PackedRun) -> Examples:
    """The examples of a run; whether they ascend, the subset's digest tells.

    Raises:
        SubsetError: its parts do not fit each other, or are larger than those of any run.
    """
    if run.low_bits > _MOST_LOW_BITS or len(run.high) > _MOST_HIGH_BYTES:
        _refuse(f"it has {run.low_bits} low bits and a bitmap of {len(run.high)} bytes")
    high = np.unpackbits(np.frombuffer(run.high, np.uint8), bitorder="little")
    indices_K = np.flatnonzero(high.view(bool))
    count = len(indices_K)
    if not 1 <= count <= RUN_EXAMPLES:
        _refuse(f"it has {count} examples")
    plane_bytes = -(-count // 8)
    if len(run.low) != run.low_bits * plane_bytes:
        _refuse(f"{len(run.low)} bytes are not {run.low_bits} planes of {count} bits")
    if len(run.weights) not in (_WEIGHT_BYTES, _WEIGHT_BYTES * count):
        _refuse(f"{len(run.weights)} bytes are no weights of {count} examples")
    places_K = np.arange(count)
    indices_K -= places_K
    _require_in_range(run, int(indices_K[-1]), count)
    indices_K <<= run.low_bits
    planes = np.frombuffer(run.low, np.uint8).reshape(run.low_bits, plane_bytes)
    for bit, plane in enumerate(planes):
        bits_K = np.unpackbits(plane, count=count, bitorder="little")
        indices_K |= bits_K.astype(np.int64) << bit
    indices_K += places_K
    indices_K += run.first
    weights_K = np.frombuffer(run.weights, "<f4").astype(np.float32, copy=False)
    return Examples(indices_K, np.broadcast_to(weights_K, count))


def runs_of(num_examples: int, start: int = 0) -> Iterator[slice]:
    """Where the runs of so many examples lie, from the example `start` on."""
    for begin in range(start, num_examples, RUN_EXAMPLES):
        yield slice(begin, min(begin + RUN_EXAMPLES, num_examples))


def packed_bytes(examples: Examples) -> int:
    """What examples take on the wire packed, without the few bytes around each message."""
    size = 0
    for place in runs_of(len(examples)):
        indices_K, weights_K = examples.indices_K[place], examples.weights_K[place]
        count = len(indices_K)
        left_out = int(indices_K[-1] - indices_K[0]) - (count - 1)
        low_bits = _best_low_bits(count, left_out)
        size += -(-((left_out >> low_bits) + count) // 8) + low_bits * -(-count // 8)
        size += _WEIGHT_BYTES * len(_shared(weights_K))
    return size


def _best_low_bits(count: int, left_out: int) -> int:
    """The L of the fewest bits, where so many indices are left out before the last one."""
    return min(range(_MOST_LOW_BITS + 1), key=lambda bits: (left_out >> bits) + bits * count)


def _shared(weights_K: NDArray[np.float32]) -> NDArray[np.float32]:
    """The one weight that all have, by its bits (0.0 is not -0.0); else all of them."""
    bits_K = weights_K.view(np.int32)
    return weights_K[:1] if (bits_K == bits_K[0]).all() else weights_K


def _require_in_range(run: PackedRun, last_high: int, count: int) -> None:
    # The largest that any of them could be, in Python's own numbers, which know no end.
    largest = run.first + ((last_high + 1) << run.low_bits) - 1 + count - 1
    if run.first < 0 or largest >= 2**63:
        _refuse(f"its indices from {run.first} on leave the range of row numbers")


def _refuse(reason: str) -> None:
    raise SubsetError(
        f"the coordinator sent a run of packed examples that cannot be: {reason}. Ask again; if "
        "it stays so, see the coordinator's log."
    )
