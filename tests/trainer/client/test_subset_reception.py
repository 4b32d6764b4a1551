"""Answers that are put together from parts, whole, packed, or as a difference; and broken ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from lipt.common.errors import SubsetError
from lipt.common.subsets.difference import Examples
from lipt.common.subsets.digest import subset_digest
from lipt.common.subsets.packing import pack
from lipt.trainer.client import subset_reception
from lipt.trainer.client.subset_reception import Reception
from lipt.trainer.subsets.subset import Subset
from lipt.v1 import subset_pb2
from tests.trainer.made_up import made_up_subset

ALL = Examples(np.arange(0, 300, 3), np.linspace(0.5, 2.0, 100, dtype=np.float32))
DIGEST = subset_digest(ALL.indices_K, ALL.weights_K)


def description(**changes: Any) -> subset_pb2.Subset:
    return subset_pb2.Subset(**{"digest": DIGEST, "num_examples": 100, **changes})


def packed(start: int, stop: int, **changes: Any) -> subset_pb2.PackedExamples:
    run = pack(Examples(ALL.indices_K[start:stop], ALL.weights_K[start:stop]))
    return subset_pb2.PackedExamples(**(vars(run) | changes))


def plain(start: int, stop: int) -> subset_pb2.SubsetExamples:
    some = slice(start, stop)
    return examples(dict(zip(ALL.indices_K[some], ALL.weights_K[some], strict=True)))


def examples(weights: dict[int, float]) -> subset_pb2.SubsetExamples:
    return subset_pb2.SubsetExamples(indices=weights, weights=weights.values())


def difference(removed: list[int], changed: dict[int, float]) -> subset_pb2.SubsetDifference:
    return subset_pb2.SubsetDifference(
        removed=removed, indices=list(changed), weights=changed.values()
    )


KINDS = {
    subset_pb2.PackedExamples: "packed",
    subset_pb2.SubsetExamples: "examples",
    subset_pb2.SubsetDifference: "difference",
}


def add(reception: Reception, *parts: Any) -> None:
    for part in parts:
        reception.add(KINDS[type(part)], part)


def received(
    described: subset_pb2.Subset, parts: Sequence[Any], base: Subset | None = None
) -> Subset:
    reception = Reception(base)
    reception.describe(described)
    add(reception, *parts)
    return reception.subset()


def asked(reception: Reception) -> tuple[str, int]:
    """What the next request says has come before."""
    request = reception.asking(subset_pb2.GetSubsetRequest(run_id="r"))
    assert request.run_id == "r"
    return request.received_digest, request.num_received


@pytest.mark.parametrize("part", [packed, plain])
def test_parts_make_the_subset(part: Any) -> None:
    subset = received(description(), [part(0, 60), part(60, 100)])
    assert subset.indices.tolist() == ALL.indices_K.tolist()
    assert subset.weights.tobytes() == ALL.weights_K.tobytes()
    assert (str(subset.indices.dtype), str(subset.weights.dtype)) == ("int64", "float32")


@pytest.mark.parametrize("part", [packed, plain])
def test_a_broken_stream_goes_on_after_what_has_come(part: Any) -> None:
    reception = Reception(None)
    assert asked(reception) == ("", 0)
    reception.describe(description())
    assert asked(reception) == ("", 0)
    add(reception, part(0, 10), part(10, 40))
    assert asked(reception) == (DIGEST, 40)
    reception.describe(description(resumed_at=40))  # and it breaks again
    assert asked(reception) == (DIGEST, 40)
    reception.describe(description(resumed_at=40))
    add(reception, part(40, 70))
    assert asked(reception) == (DIGEST, 70)
    reception.describe(description(resumed_at=70))
    add(reception, part(70, 100))
    assert reception.subset().digest == DIGEST


def test_an_older_coordinator_sends_all_of_them_again_after_a_break() -> None:
    reception = Reception(None)
    reception.describe(description())
    add(reception, plain(0, 60))
    reception.describe(description())
    add(reception, plain(0, 60), plain(60, 100))
    assert reception.subset().digest == DIGEST


def test_another_subset_after_a_break_is_taken_from_its_beginning() -> None:
    other = made_up_subset([2, 5, 9], [1.0, 0.5, 2.0])
    reception = Reception(None)
    reception.describe(description())
    add(reception, packed(0, 60))
    reception.describe(subset_pb2.Subset(digest=other.digest, num_examples=3))
    add(reception, examples({2: 1.0, 5: 0.5, 9: 2.0}))
    assert reception.subset().indices.tolist() == [2, 5, 9]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"resumed_at": 59}, "of 100 examples at 59, where 60 of the 100"),
        ({"resumed_at": 60, "num_examples": 10**12}, "of 1000000000000 examples at 60"),
        ({"resumed_at": 60, "digest": "0" * 64}, f"goes on with subset '{'0' * 64}'"),
    ],
)
def test_a_stream_that_goes_on_elsewhere_is_refused(
    changes: dict[str, Any], complaint: str
) -> None:
    reception = Reception(None)
    reception.describe(description())
    add(reception, packed(0, 60))
    with pytest.raises(SubsetError, match=complaint):
        reception.describe(description(**changes))


def test_a_stream_that_begins_in_the_middle_is_refused() -> None:
    with pytest.raises(SubsetError, match="at 60, where 0 of the 0"):
        Reception(None).describe(description(resumed_at=60))


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
        ([plain(0, 100), plain(0, 1)], "announced 100 examples and sent 101"),
        ([plain(0, 99)], "announced 100 examples and sent 99"),
        ([plain(50, 100), plain(0, 50)], "ascending order"),
        ([plain(0, 99), examples({299: 2.0})], DIGEST),
        ([plain(0, 99), examples({297: 2.5})], DIGEST),
        ([subset_pb2.SubsetExamples(indices=[0], weights=[])], "one weight per index"),
        ([subset_pb2.SubsetExamples(weights=[1.0] * 101)], "100 examples and sent 101"),
        ([difference([], {0: 0.5})], "in parts of examples and sent difference"),
    ],
)
def test_parts_that_do_not_fit_are_refused(parts: list[Any], complaint: str) -> None:
    with pytest.raises(SubsetError, match=complaint):
        received(description(), parts)


@pytest.mark.parametrize(
    ("manifest", "complaint"), [("{", "not JSON"), ("[]", "not a JSON object")]
)
def test_a_manifest_that_is_none_is_refused(manifest: str, complaint: str) -> None:
    with pytest.raises(SubsetError, match=complaint):
        received(description(manifest_json=manifest), [packed(0, 100)])


def test_another_digest_than_the_announced_one_is_refused() -> None:
    with pytest.raises(SubsetError, match="was announced"):
        received(description(digest="0" * 64), [packed(0, 100)])


OLD = {2: 1.0, 5: 0.5, 9: 2.0}
NEW = {2: 1.0, 7: 1.0, 9: 0.25}
BASE = made_up_subset(list(OLD), list(OLD.values()))
NEW_DIGEST = made_up_subset(list(NEW), list(NEW.values())).digest


def changed(difference_to: str = BASE.digest, **changes: Any) -> subset_pb2.Subset:
    fields = {"digest": NEW_DIGEST, "num_examples": 3, "difference_to": difference_to} | changes
    return subset_pb2.Subset(**fields)


def as_weights(subset: Subset) -> dict[int, float]:
    return dict(zip(subset.indices.tolist(), subset.weights.tolist(), strict=True))


@pytest.mark.parametrize(
    "parts",
    [
        [difference([5], {7: 1.0, 9: 0.25})],
        [difference([5], {7: 1.0}), difference([], {9: 0.25})],
    ],
)
def test_a_difference_is_put_together_with_what_is_here(parts: list[Any]) -> None:
    new = received(changed(), parts, BASE)
    assert as_weights(new) == NEW
    assert new.digest == NEW_DIGEST
    assert as_weights(BASE) == OLD


def test_nothing_at_all_is_the_subset_that_is_here() -> None:
    again = received(changed(digest=BASE.digest, kept=True), [], BASE)
    assert again.kept
    assert again.indices.tolist() == BASE.indices.tolist()


def test_the_examples_may_come_in_full_although_a_difference_would_do() -> None:
    # As from a coordinator of before there were differences.
    assert as_weights(received(changed(difference_to=""), [examples(NEW)], BASE)) == NEW


def test_a_cut_difference_is_taken_from_its_beginning() -> None:
    first, second = difference([5], {7: 1.0}), difference([], {9: 0.25})
    reception = Reception(BASE)
    reception.describe(changed())
    add(reception, first)
    assert asked(reception) == ("", 0)
    reception.describe(changed())
    add(reception, first, second)
    assert as_weights(reception.subset()) == NEW


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        ([difference([4], {7: 1.0, 9: 0.25})], "removes index 4, which is not there"),
        ([difference([5, 5], {7: 1.0, 9: 0.25})], "removes are not ascending"),
        ([difference([5], {7: 1.0}), difference([], {7: 1.0})], "sets are not ascending"),
        ([difference([5, 9], {9: 0.25, 7: 1.0})], "sets are not ascending"),
        ([difference([5], {5: 0.5, 7: 1.0})], "removes and sets index 5"),
        ([difference([5], {8: 1.0, 9: 0.25})], "was announced: they were changed or damaged"),
        ([difference([5], {7: 2.0, 9: 0.25})], "was announced: they were changed or damaged"),
        ([difference([], {7: 1.0})], "announced 3 examples and sent 4"),
        ([difference([5], {})], "announced 3 examples and sent 2"),
        ([], "was announced"),
        ([difference([], dict.fromkeys(range(4), 1.0))], "3 examples and sent 4"),
        ([difference([1, 2, 3, 4], {})], "removes 4 of the 3 examples that are here"),
        ([examples(NEW)], "in parts of difference and sent examples"),
        ([packed(0, 100)], "in parts of difference and sent packed"),
        ([difference([5], {-7: 1.0, 9: 0.25})], "row numbers"),
        ([difference([5], {7: float("nan"), 9: 0.25})], "finite"),
        (
            [subset_pb2.SubsetDifference(removed=[5], indices=[7, 9], weights=[1.0])],
            "2 indices and 1 weights",
        ),
    ],
)
def test_a_difference_that_does_not_fit_is_refused(parts: list[Any], complaint: str) -> None:
    with pytest.raises(SubsetError, match=complaint):
        received(changed(), parts, BASE)


@pytest.mark.parametrize(
    ("base", "to", "complaint"),
    [
        (BASE, "0" * 64, f"{'0' * 64}', and {BASE.digest} is here"),
        (None, BASE.digest, f"difference to subset '{BASE.digest}', and none is"),
    ],
)
def test_a_difference_to_a_subset_that_is_not_here_is_refused(
    base: Subset | None, to: str, complaint: str
) -> None:
    with pytest.raises(SubsetError, match=complaint):
        Reception(base).describe(changed(to))


def test_what_is_only_announced_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subset_reception, "_ROOM_AT_FIRST", 10)
    reception = Reception(None)
    reception.describe(subset_pb2.Subset(num_examples=10**15, digest=DIGEST))
    for start in range(0, 100, 20):
        add(reception, packed(start, start + 20))
    contents = reception._contents
    assert isinstance(contents, subset_reception._Whole)
    # 20 have room for 40, which 60 do not fit into.
    assert len(contents._indices) == len(contents._weights) == 120
    assert contents.examples().indices_K.tolist() == list(range(0, 300, 3))


def test_the_subset_keeps_the_arrays_that_were_filled() -> None:
    reception = Reception(None)
    reception.describe(description())
    add(reception, packed(0, 100))
    subset = reception.subset()
    assert isinstance(reception._contents, subset_reception._Whole)
    assert subset.indices is reception._contents._indices
    assert not subset.indices.flags.writeable
    assert not subset.weights.flags.writeable
