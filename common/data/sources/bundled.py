"""Bundled data: files inside scikit-learn, read without importing it, and their two parts."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lipt.common.errors import MissingExtraError

_TEST_EVERY = 5


def bundled_file(name: str, *, needed_for: str) -> Path:
    """A file of scikit-learn's data.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    package = find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise MissingExtraError("scikit-learn", extra="demo", needed_for=needed_for)
    return Path(package.submodule_search_locations[0]) / "datasets" / "data" / name


def rows_of_part(source: str, labels_N: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rows of "NAME-test", every fifth of each class; of "NAME", all; of others, the rest."""
    if "-" not in source:
        return np.arange(len(labels_N))
    places_N = np.empty_like(labels_N)  # each row's place among those of its class
    for label in np.unique(labels_N):
        of_class = labels_N == label
        places_N[of_class] = np.arange(of_class.sum())
    is_test_N = places_N % _TEST_EVERY == _TEST_EVERY - 1
    return np.flatnonzero(is_test_N if source.endswith("-test") else ~is_test_N)
