from __future__ import annotations

import pytest
import torch

from lipt.core.diagnosis.copies import Copies
from lipt.core.diagnosis.duplicates import Duplicates, find_duplicates


def found_in(
    pictures: list[int],
    *,
    exact: list[int] | None = None,
    labels: list[int] | None = None,
    quality: list[float] | None = None,
) -> Duplicates:
    """Of examples none of which is another one to the pixel, where nothing else is said."""
    count = len(pictures)
    copies = Copies(
        torch.tensor(pictures), torch.tensor(exact or list(range(count))), threshold=0.75
    )
    return find_duplicates(
        torch.tensor(labels or [0] * count), torch.tensor(quality or [1.0] * count), copies
    )


def test_the_best_label_of_a_picture_is_kept() -> None:
    found = found_in([0, 1, 0, 0, 4], quality=[0.5, 0.9, 0.2, 0.9, 0.5], labels=[0, 1, 0, 1, 2])
    assert found.kept_N.tolist() == [3, 1, 3, 3, 4]
    assert found.surplus == 2
    assert found.groups() == [[3, 0, 2]]
    assert found.threshold == 0.75


def test_of_equal_labels_the_lowest_id_is_kept() -> None:
    assert found_in([0, 0, 0], quality=[0.1, 0.5, 0.5]).kept_N.tolist() == [1, 1, 1]


@pytest.mark.parametrize(("labels", "conflicting"), [([3, 3, 3, 1], 0), ([3, 2, 1, 1], 1)])
def test_a_group_whose_labels_differ_conflicts_once(labels: list[int], conflicting: int) -> None:
    assert found_in([0, 0, 0, 3], labels=labels).conflicting == conflicting


def test_groups_are_counted_by_what_their_examples_share() -> None:
    # 0, 1 and 2 are one picture to the pixel; 3 and 4 nearly; of 5, 6 and 7 two to the pixel.
    found = found_in([0, 0, 0, 3, 3, 5, 5, 5], exact=[0, 0, 0, 3, 4, 5, 5, 7])
    assert (found.exact_groups, found.near_groups, found.surplus) == (2, 2, 5)


def test_the_largest_group_comes_first() -> None:
    found = found_in([0, 1, 0, 1, 1])
    assert found.groups() == [[1, 3, 4], [0, 2]]


def test_one_example_is_kept() -> None:
    found = found_in([0])
    assert (found.kept_N.tolist(), found.groups()) == ([0], [])
