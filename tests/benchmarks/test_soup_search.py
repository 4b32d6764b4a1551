from __future__ import annotations

from typing import Any

import pytest

from benchmarks import soup_search
from lipt.common.config.run_config import SoupSearch

pytestmark = pytest.mark.slow

GRID, HALVING = SoupSearch.GRID, SoupSearch.HALVING


def test_evaluated_examples_are_counted_for_each_search(monkeypatch: pytest.MonkeyPatch) -> None:
    run: dict[str, Any] = {"learners": {"num_learners": 2, "num_steps": 1, "batch_size": 32}}
    monkeypatch.setitem(soup_search.RUNS, "digits", run)
    found = soup_search.measure("digits", 0)
    # Of 20 of each digit, theta*, two learners, and nine mixtures of them.
    assert found[GRID].examples == 12 * 200
    # Slices of 2, 4, 8 and 16 for 9, 5, 3 and 2 ratios, then the last one.
    sliced = 9 * 2 + 5 * 4 + 3 * 8 + 2 * 16
    assert found[HALVING].examples == 4 * 200 + sliced
    assert 0 < found[HALVING].accuracy < 1
