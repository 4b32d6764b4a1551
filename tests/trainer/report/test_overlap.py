from __future__ import annotations

import numpy as np
import pytest

from lipt.trainer.report.overlap import overlaps
from tests.trainer.made_up import made_up_subset

LABELS = np.array([0, 0, 0, 0, 1, 1])


def test_shared_examples_are_counted_beside_what_chance_gives() -> None:
    first = made_up_subset([0, 1, 4], strategy="craig")
    second = made_up_subset([1, 2, 3, 4, 5], strategy="grand")
    (found,) = overlaps([first, second], LABELS)
    assert (found.first, found.second, found.shared) == ("craig", "grand", 2)
    assert found.jaccard == pytest.approx(2 / 6)
    # Of the first class 2 x 3 / 4, of the second 1 x 2 / 2.
    assert found.by_chance == pytest.approx(2.5)


def test_every_two_are_compared_once() -> None:
    subsets = [made_up_subset([row], strategy=name) for row, name in enumerate("abc")]
    assert [(found.first, found.second) for found in overlaps(subsets, LABELS)] == [
        ("a", "b"),
        ("a", "c"),
        ("b", "c"),
    ]
    assert overlaps(subsets[:1], LABELS) == ()
