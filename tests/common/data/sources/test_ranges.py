from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lipt.common.data.sources.storage import Ranges

KIB = 2**10


class Fetched:
    """A file of so many bytes, and what was fetched of it."""

    def __init__(self, size: int) -> None:
        self.content = bytes(i % 251 for i in range(size))
        self.parts: list[tuple[int, int]] = []

    def __call__(self, start: int, end: int) -> bytes:
        self.parts.append((start, end))
        return self.content[start:end]


def test_what_is_read_in_order_is_fetched_in_ever_larger_parts() -> None:
    file = Fetched(200 * KIB)
    ranges = Ranges(file)
    read = b"".join(ranges.read(offset, KIB) for offset in range(0, 200 * KIB, KIB))
    assert read == file.content
    assert file.parts == [
        (0, 16 * KIB),
        (16 * KIB, 48 * KIB),
        (48 * KIB, 112 * KIB),
        (112 * KIB, 240 * KIB),
    ]


def test_what_is_read_here_and_there_is_fetched_alone() -> None:
    file = Fetched(1000 * KIB)
    ranges = Ranges(file)
    for place in (500, 100, 900):
        ranges.read(place * KIB, 512)
    assert file.parts == [(p * KIB, p * KIB + 16 * KIB) for p in (500, 100, 900)]


def test_a_large_range_is_one_request() -> None:
    file = Fetched(1000 * KIB)
    Ranges(file).read(0, 900 * KIB)
    assert file.parts == [(0, 900 * KIB)]


@given(
    size=st.integers(0, 100_000),
    reads=st.lists(st.tuples(st.integers(0, 110_000), st.integers(0, 40_000)), max_size=12),
)
def test_reads_what_a_slice_has(size: int, reads: list[tuple[int, int]]) -> None:
    file = Fetched(size)
    ranges = Ranges(file)
    for offset, some in reads:
        assert ranges.read(offset, some) == file.content[offset : offset + some]
