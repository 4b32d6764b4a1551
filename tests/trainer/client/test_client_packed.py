"""Packed examples, and answers that come over more than one stream."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lipt.common.errors import SubsetError
from lipt.common.subsets.difference import Examples
from lipt.common.subsets.digest import subset_digest
from lipt.common.subsets.packing import pack
from lipt.trainer.client import subset_reception
from lipt.trainer.client.client import Client
from lipt.v1 import subset_pb2
from tests.trainer.made_up import made_up_subset, subset_description, subset_examples

ALL = Examples(np.arange(0, 300, 3), np.linspace(0.5, 2.0, 100, dtype=np.float32))
DIGEST = subset_digest(ALL.indices_K, ALL.weights_K)


def description(**changes: Any) -> subset_pb2.GetSubsetResponse:
    fields: dict[str, Any] = {"digest": DIGEST, "num_examples": 100}
    return subset_description(**(fields | changes))


def packed(start: int, stop: int, **changes: Any) -> subset_pb2.GetSubsetResponse:
    run = pack(Examples(ALL.indices_K[start:stop], ALL.weights_K[start:stop]))
    part = subset_pb2.PackedExamples(**(vars(run) | changes))
    return subset_pb2.GetSubsetResponse(packed=part)


def plain(start: int, stop: int) -> subset_pb2.GetSubsetResponse:
    place = slice(start, stop)
    return subset_examples(ALL.indices_K[place].tolist(), ALL.weights_K[place].tolist())


def asked(fake: Any) -> list[tuple[str, int]]:
    """What each request says has come before."""
    return [(request.received_digest, request.num_received) for request in fake.requests]


def test_a_packed_subset_is_that_very_subset(fake: Any, client: Client) -> None:
    fake.subset_scripts = [[description(), packed(0, 60), packed(60, 100)]]
    subset = client.subset(fraction=0.1)
    assert subset.indices.tolist() == list(range(0, 300, 3))
    assert subset.weights.tobytes() == ALL.weights_K.tobytes()
    (request,) = fake.requests
    assert request.accept_packed


def test_an_older_coordinator_sends_them_as_ever(fake: Any, client: Client, cut: Any) -> None:
    # And all of them again after a break.
    fake.subset_scripts = [
        [description(), plain(0, 60), cut],
        [description(), plain(0, 60), plain(60, 100)],
    ]
    assert client.subset(fraction=0.1).digest == DIGEST
    assert asked(fake) == [("", 0), (DIGEST, 60)]


@pytest.mark.parametrize("part", [packed, plain])
def test_a_broken_stream_goes_on_after_what_has_come(
    fake: Any, client: Client, cut: Any, part: Any
) -> None:
    fake.subset_scripts = [
        [description(), part(0, 10), part(10, 40), cut],
        [cut],
        [description(resumed_at=40), cut],
        [description(resumed_at=40), part(40, 70), cut],
        [description(resumed_at=70), part(70, 100)],
    ]
    subset = client.subset(fraction=0.1)
    assert subset.digest == DIGEST
    assert asked(fake) == [("", 0), (DIGEST, 40), (DIGEST, 40), (DIGEST, 40), (DIGEST, 70)]


def test_another_subset_after_a_break_is_taken_from_its_beginning(
    fake: Any, client: Client, cut: Any
) -> None:
    other = made_up_subset([2, 5, 9], [1.0, 0.5, 2.0])
    fake.subset_scripts = [
        [description(), packed(0, 60), cut],
        [subset_description(other.digest), subset_examples([2, 5, 9], [1.0, 0.5, 2.0])],
    ]
    assert client.subset(fraction=0.1).indices.tolist() == [2, 5, 9]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"resumed_at": 59}, "of 100 examples at 59, where 60 of the 100"),
        ({"resumed_at": 60, "num_examples": 10**12}, "of 1000000000000 examples at 60"),
        ({"resumed_at": 60, "digest": "0" * 64}, f"goes on with subset '{'0' * 64}'"),
    ],
)
def test_a_stream_that_goes_on_elsewhere_is_refused(
    fake: Any, client: Client, cut: Any, changes: dict[str, Any], complaint: str
) -> None:
    fake.subset_scripts = [[description(), packed(0, 60), cut], [description(**changes)]]
    with pytest.raises(SubsetError, match=complaint):
        client.subset(fraction=0.1)


def test_a_stream_that_begins_in_the_middle_is_refused(fake: Any, client: Client) -> None:
    fake.subset_scripts = [[description(resumed_at=60), packed(60, 100)]]
    with pytest.raises(SubsetError, match="at 60, where 0 of the 0"):
        client.subset(fraction=0.1)


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        ([packed(0, 100), packed(0, 1)], "announced 100 examples and sent 101"),
        ([packed(0, 99)], "announced 100 examples and sent 99"),
        ([packed(50, 100), packed(0, 50)], "ascending order"),
        ([packed(0, 100, first=1)], "changed or damaged"),
        ([packed(0, 100, weights=bytes(4))], "changed or damaged"),
        ([packed(0, 100, weights=b"\x00\x00\x80\x7f")], "finite"),
        ([packed(0, 100, high=b"")], "cannot be: it has 0 examples"),
        ([packed(0, 100, low_bits=63)], "cannot be: it has 63 low bits"),
        ([packed(0, 100, low=b"?")], "cannot be: 1 bytes are not"),
        ([packed(0, 100, first=-3)], "leave the range of row numbers"),
    ],
)
def test_parts_that_do_not_fit_are_refused(
    fake: Any, client: Client, parts: list[Any], complaint: str
) -> None:
    fake.subset_scripts = [[description(), *parts]]
    with pytest.raises(SubsetError, match=complaint):
        client.subset(fraction=0.1)


def test_packed_examples_in_place_of_a_difference_are_refused(fake: Any, client: Client) -> None:
    old = made_up_subset([1])
    fake.subset_scripts = [[description(difference_to=old.digest), packed(0, 100)]]
    with pytest.raises(SubsetError, match="in parts of difference and sent packed"):
        client.subset(fraction=0.1, previous=old)


def test_what_is_only_announced_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subset_reception, "_ROOM_AT_FIRST", 10)
    reception = subset_reception.Reception(None)
    reception.describe(subset_pb2.Subset(num_examples=10**15, digest=DIGEST))
    for start in range(0, 100, 20):
        reception.add("packed", packed(start, start + 20).packed)
    contents = reception._contents
    assert isinstance(contents, subset_reception._Whole)
    # 20 have room for 40, which 60 do not fit into.
    assert len(contents._indices) == len(contents._weights) == 120
    assert contents.examples().indices_K.tolist() == list(range(0, 300, 3))


def test_the_subset_keeps_the_arrays_that_were_filled() -> None:
    reception = subset_reception.Reception(None)
    reception.describe(subset_pb2.Subset(num_examples=100, digest=DIGEST))
    reception.add("packed", packed(0, 100).packed)
    subset = reception.subset()
    assert isinstance(reception._contents, subset_reception._Whole)
    assert subset.indices is reception._contents._indices
    assert not subset.indices.flags.writeable
    assert not subset.weights.flags.writeable
