from __future__ import annotations

import numpy as np
import pytest

from lipt.common.subsets.overlap import overlap

LABELS = np.array([0, 0, 0, 0, 1, 1])


def test_shared_examples_are_counted_beside_what_chance_gives() -> None:
    found = overlap(np.array([0, 1, 4]), np.array([1, 2, 3, 4, 5]), LABELS)
    assert found.shared == 2
    assert found.jaccard == pytest.approx(2 / 6)
    # Of the first class 2 x 3 / 4, of the second 1 x 2 / 2.
    assert found.by_chance == pytest.approx(2.5)


def test_a_class_that_is_empty_or_in_no_subset_counts_for_nothing() -> None:
    found = overlap(np.array([1]), np.array([1, 2]), np.array([0, 2, 2]))
    assert (found.shared, found.by_chance) == (1, 1.0)
