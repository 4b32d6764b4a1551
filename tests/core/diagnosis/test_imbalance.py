from __future__ import annotations

import pytest

from lipt.core.diagnosis.imbalance import Imbalance, imbalance


def test_equal_classes_count_as_many() -> None:
    found = imbalance([5, 5, 5, 5])
    assert found.effective_classes == pytest.approx(4.0)
    assert found == Imbalance(1.0, 0, 0, found.effective_classes)


def test_ratio_is_of_the_largest_to_the_smallest_that_has_any() -> None:
    # Entropy of (1/2, 1/4, 1/4) is 1.5 bits: 2^1.5 classes.
    found = imbalance([20, 10, 0, 10])
    assert (found.ratio, found.smallest, found.largest) == (2.0, 1, 0)
    assert found.effective_classes == pytest.approx(2**1.5)


def test_one_class_is_one() -> None:
    assert imbalance([0, 7]) == Imbalance(1.0, 1, 1, 1.0)


def test_no_examples_are_refused() -> None:
    with pytest.raises(ValueError, match="no examples"):
        imbalance([0, 0])
