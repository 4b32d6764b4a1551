"""Greedy choice one by one, on gains that are added up by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lipt.core.selection.solvers.one_by_one import choose_one_by_one


def test_gains_change_with_every_pick() -> None:
    # Gains 5, 4, 3; the pick 0 takes 3 from 1 and none from 2.
    kernel = torch.tensor([[0.0, 3.0, 0.0], [3.0, 0.0, 0.0], [0.0, 0.0, 0.0]]).double()
    chosen = choose_one_by_one(
        torch.tensor([5.0, 4.0, 3.0]).double(),
        3,
        rows_of=lambda positions_B: kernel[positions_B],
        update=_take_away,
    )
    assert chosen.indices_K.tolist() == [0, 2, 1]


def test_gains_equal_in_float32_tie() -> None:
    gains_N = 1 + torch.tensor([0.0, 2.0**-40, 2.0**-30]).double()
    chosen = choose_one_by_one(
        gains_N, 3, rows_of=lambda positions_B: torch.zeros(len(positions_B), 3), update=_nothing
    )
    assert chosen.indices_K.tolist() == [0, 1, 2]


@pytest.mark.parametrize("rows_ahead", [1, 2, 4, 100])
def test_rows_are_those_of_the_pick_and_never_more_than_are_left(rows_ahead: int) -> None:
    asked: list[int] = []
    seen: list[tuple[int, float]] = []

    def rows_of(positions_B: Tensor) -> Tensor:
        asked.append(len(positions_B))
        return positions_B[:, None].double().expand(-1, 6)

    def update(_: Tensor, row_N: Tensor, position: int) -> None:
        seen.append((position, float(row_N[0])))

    # All tie, so the largest that a sort finds need not hold the one that is picked.
    chosen = choose_one_by_one(
        torch.zeros(6).double(), 5, rows_of=rows_of, update=update, rows_ahead=rows_ahead
    )
    assert chosen.indices_K.tolist() == [0, 1, 2, 3, 4]
    # Nothing is to be updated after the last pick.
    assert seen == [(position, float(position)) for position in range(4)]
    assert max(asked) <= min(rows_ahead, 5)


def _take_away(gains_N: Tensor, row_N: Tensor, position: int) -> None:
    gains_N.sub_(row_N)


def _nothing(gains_N: Tensor, row_N: Tensor, position: int) -> None:
    """Leave the gains as they are."""
