import numpy as np
import pytest
import torch

from lipt.common import maps as module
from lipt.common.maps import placed, principal_components, rows_to_draw


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


def test_points_fill_a_rectangle_in_its_middle_without_being_stretched() -> None:
    corners = torch.tensor([[0.0, 0.0], [2.0, 0.0], [2.0, 1.0]])
    # Eight are free of the width of ten: two units are eight, and one is four.
    found = placed(corners, width=10, height=10, margin=1)
    assert found.tolist() == [[1.0, 3.0], [9.0, 3.0], [9.0, 7.0]]


def test_principal_components_are_the_directions_of_most_variance() -> None:
    features_ND = torch.tensor([[0.0, 3.0, 1.0], [0.0, -3.0, 1.0], [0.5, 0.0, 1.0], [-0.5, 0, 1.0]])
    expected_N2 = torch.tensor([[3.0, 0.0], [3.0, 0.0], [0.0, 0.5], [0.0, 0.5]]).double()
    torch.testing.assert_close(principal_components(features_ND).abs(), expected_N2)


@pytest.mark.parametrize(("count", "dimensions"), [(1, 1), (2, 6), (40, 2)])
def test_few_points_and_equal_points_have_places_too(count: int, dimensions: int) -> None:
    places = principal_components(torch.ones(count, dimensions))
    assert places.shape == (count, 2)
    assert places.isfinite().all()
