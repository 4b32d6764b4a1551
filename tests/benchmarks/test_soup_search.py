from __future__ import annotations

from typing import Any

import pytest

from benchmarks import soup_search
from lipt.common.config.run_config import SoupMethod

pytestmark = pytest.mark.slow


def test_evaluated_examples_are_counted_for_each_method(monkeypatch: pytest.MonkeyPatch) -> None:
    run: dict[str, Any] = {"learners": {"num_learners": 2, "num_steps": 1, "batch_size": 32}}
    monkeypatch.setitem(soup_search.RUNS, "digits", run)
    found = soup_search.measure("digits", 0)
    # Of 20 of each digit, theta*, two learners, and nine mixtures of them, or one.
    examples = {method: counted.examples for method, counted in found.items()}
    assert examples == {
        SoupMethod.INTERPOLATION: 12 * 200,
        SoupMethod.GREEDY: 4 * 200,
        SoupMethod.UNIFORM: 4 * 200,
    }
    assert 0 < found[SoupMethod.GREEDY].accuracy < 1
