from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from lipt.common.data.dataset import Numbering


@st.composite
def numberings(draw: st.DrawFn) -> tuple[int, Numbering]:
    size = draw(st.integers(1, 40))
    left_out = draw(st.sets(st.integers(0, size - 1), max_size=size - 1))
    return size, Numbering(tuple(sorted(left_out)))


@given(numberings())
def test_places_count_the_ids_that_are_not_left_out(drawn: tuple[int, Numbering]) -> None:
    size, numbering = drawn
    ids = [row for row in range(size) if row not in numbering.left_out]
    places = torch.arange(len(ids))
    assert numbering.ids(places).tolist() == ids
    assert numbering.places(torch.tensor(ids)).tolist() == places.tolist()


@given(numberings())
def test_values_are_kept_by_place_and_spread_by_id(drawn: tuple[int, Numbering]) -> None:
    size, numbering = drawn
    values_N2 = torch.arange(size)[:, None] * torch.tensor([1.0, 10.0])
    kept = numbering.kept(values_N2)
    assert kept[:, 0].tolist() == [row for row in range(size) if row not in numbering.left_out]
    spread = numbering.spread(kept, -1.0)
    assert [row for row in range(size) if spread[row, 0] == -1] == list(numbering.left_out)
    spread[list(numbering.left_out)] = values_N2[list(numbering.left_out)]
    assert torch.equal(spread, values_N2)


def test_those_that_are_left_out_may_have_values_of_their_own() -> None:
    numbering = Numbering((1, 3))
    assert numbering.spread(torch.tensor([5, 6]), torch.tensor([7, 8])).tolist() == [5, 7, 6, 8]


def test_where_nobody_is_left_out_values_are_not_copied() -> None:
    values_N = torch.arange(3)
    assert Numbering().kept(values_N) is values_N
