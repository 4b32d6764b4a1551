from __future__ import annotations

import numpy as np
import pytest

from lipt.common.maps import sample as module
from lipt.common.maps.sample import rows_to_draw


def test_of_small_data_every_row_is_drawn() -> None:
    assert rows_to_draw(5, [np.array([1, 2])], [3], seed=0).tolist() == [0, 1, 2, 3, 4]


def test_of_large_data_a_sample_some_of_every_subset_and_the_worst_suspects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MOST_AT_RANDOM", 10)
    monkeypatch.setattr(module, "_MOST_CHOSEN", 8)
    monkeypatch.setattr(module, "MOST_SUSPECTS", 3)
    first, second = np.arange(1000, 2000), np.arange(5000, 5002)
    suspects = [9000, 8000, 7000, 6000]
    rows = rows_to_draw(100_000, [first, second], suspects, seed=0).numpy()
    assert np.array_equal(rows, np.unique(rows))
    assert len(rows) <= 10 + 2 * 4 + 3
    assert len(np.intersect1d(rows, first)) >= 4
    assert np.isin(second, rows).all()
    assert np.isin(suspects[:3], rows).all()
    assert 6000 not in rows
    assert np.array_equal(rows, rows_to_draw(100_000, [first, second], suspects, seed=0))
    assert not np.array_equal(rows, rows_to_draw(100_000, [first, second], suspects, seed=1))
