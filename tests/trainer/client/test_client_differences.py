from __future__ import annotations

import hashlib
import struct
from typing import Any

import pytest

from lipt.common.errors import SubsetError
from lipt.trainer.client.client import Client
from lipt.trainer.subsets.subset import Subset
from lipt.v1 import subset_pb2
from tests.trainer.made_up import subset_description, subset_examples


def digest(weights: dict[int, float]) -> str:
    packed = struct.pack(f"<{len(weights)}q{len(weights)}f", *weights, *weights.values())
    return hashlib.sha256(packed).hexdigest()


OLD = {2: 1.0, 5: 0.5, 9: 2.0}
NEW = {2: 1.0, 7: 1.0, 9: 0.25}


def description(difference_to: str = "", **changes: Any) -> subset_pb2.GetSubsetResponse:
    return subset_description(**({"digest": digest(NEW), "difference_to": difference_to} | changes))


def examples(weights: dict[int, float]) -> subset_pb2.GetSubsetResponse:
    return subset_examples(list(weights), list(weights.values()))


def difference(removed: list[int], changed: dict[int, float]) -> subset_pb2.GetSubsetResponse:
    part = subset_pb2.SubsetDifference(
        removed=removed, indices=list(changed), weights=changed.values()
    )
    return subset_pb2.GetSubsetResponse(difference=part)


@pytest.fixture
def old(fake: Any, client: Client) -> Subset:
    fake.subset_scripts = [[description(digest=digest(OLD)), examples(OLD)]]
    subset = client.subset(fraction=0.1)
    fake.requests.clear()
    return subset


def as_weights(subset: Subset) -> dict[int, float]:
    return dict(zip(subset.indices.tolist(), subset.weights.tolist(), strict=True))


@pytest.mark.parametrize(
    "parts",
    [
        [difference([5], {7: 1.0, 9: 0.25})],
        [difference([5], {7: 1.0}), difference([], {9: 0.25})],
    ],
)
def test_a_difference_is_put_together_with_what_is_here(
    fake: Any, client: Client, old: Subset, parts: list[Any]
) -> None:
    fake.subset_scripts = [[description(old.digest), *parts]]
    new = client.subset(fraction=0.1, previous=old)
    assert as_weights(new) == NEW
    assert new.digest == digest(NEW)
    assert as_weights(old) == OLD
    (request,) = fake.requests
    assert (request.previous, request.accept_difference) == (old.digest, True)


def test_nothing_at_all_is_the_subset_that_is_here(fake: Any, client: Client, old: Subset) -> None:
    fake.subset_scripts = [[description(old.digest, digest=old.digest, kept=True)]]
    again = client.subset(fraction=0.1, previous=old)
    assert again.kept
    assert again.indices.tolist() == old.indices.tolist()


def test_the_examples_may_come_in_full_all_the_same(fake: Any, client: Client, old: Subset) -> None:
    # As from a coordinator of before there were differences.
    fake.subset_scripts = [[description(), examples(NEW)]]
    assert as_weights(client.subset(fraction=0.1, previous=old)) == NEW


def test_who_has_only_a_digest_accepts_no_difference(
    fake: Any, client: Client, old: Subset
) -> None:
    fake.subset_scripts = [[description(), examples(NEW)], [description(), examples(NEW)]]
    client.subset(fraction=0.1, previous=old.digest)
    client.subset(fraction=0.1)
    assert [request.accept_difference for request in fake.requests] == [False, False]
    fake.subset_scripts = [[description(old.digest), difference([5], {7: 1.0, 9: 0.25})]]
    with pytest.raises(SubsetError, match=f"difference to subset '{old.digest}', and none is"):
        client.subset(fraction=0.1, previous=old.digest)


def test_a_cut_difference_is_asked_for_again(
    fake: Any, client: Client, old: Subset, cut: Any
) -> None:
    first, second = difference([5], {7: 1.0}), difference([], {9: 0.25})
    fake.subset_scripts = [
        [description(old.digest), first, cut],
        [description(old.digest), first, second],
    ]
    assert as_weights(client.subset(fraction=0.1, previous=old)) == NEW


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
        ([difference([5], {-7: 1.0, 9: 0.25})], "row numbers"),
        ([difference([5], {7: float("nan"), 9: 0.25})], "finite"),
    ],
)
def test_a_difference_that_does_not_fit_is_refused(
    fake: Any, client: Client, old: Subset, parts: list[Any], complaint: str
) -> None:
    fake.subset_scripts = [[description(old.digest), *parts]]
    with pytest.raises(SubsetError, match=complaint):
        client.subset(fraction=0.1, previous=old)


def test_a_difference_with_a_weight_missing_is_refused(
    fake: Any, client: Client, old: Subset
) -> None:
    part = subset_pb2.SubsetDifference(removed=[5], indices=[7, 9], weights=[1.0])
    response = subset_pb2.GetSubsetResponse(difference=part)
    fake.subset_scripts = [[description(old.digest), response]]
    with pytest.raises(SubsetError, match="2 indices and 1 weights"):
        client.subset(fraction=0.1, previous=old)


def test_a_difference_to_another_subset_is_refused(fake: Any, client: Client, old: Subset) -> None:
    fake.subset_scripts = [[description("0" * 64), difference([5], {7: 1.0, 9: 0.25})]]
    with pytest.raises(SubsetError, match=f"{'0' * 64}', and {old.digest} is here"):
        client.subset(fraction=0.1, previous=old)


def test_a_difference_where_examples_were_announced_is_refused(
    fake: Any, client: Client, old: Subset
) -> None:
    fake.subset_scripts = [[description(), difference([5], {7: 1.0, 9: 0.25})]]
    with pytest.raises(SubsetError, match="in parts of examples and sent difference"):
        client.subset(fraction=0.1, previous=old)
