"""Features of columns, by hand, and projections against the counts that they are of."""

from __future__ import annotations

import torch

from lipt.common.inputs.specs import Column, ColumnType
from lipt.core.proxies import column_values as module
from lipt.core.proxies.column_values import column_values


def features(column: Column, values: torch.Tensor, largest: int = 0) -> torch.Tensor:
    """Of one column."""
    extract = column_values(
        (column,), lambda _: largest, lambda _: torch.Generator().manual_seed(3)
    )
    return extract({column.name: values})


def test_numbers_are_features_as_they_are() -> None:
    column = Column("x", ColumnType.FLOAT64, (2, 2))
    values = torch.arange(8, dtype=torch.float64).view(2, 2, 2)
    assert features(column, values).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_flags_are_numbers() -> None:
    flags = Column("x", ColumnType.INT64, (3,), num_values=2)
    assert features(flags, torch.tensor([[1, 0, 1]])).tolist() == [[1, 0, 1]]
    assert features(Column("x", ColumnType.BOOL, ()), torch.tensor([True])).tolist() == [[1]]


def test_whole_numbers_of_both_signs_are_numbers() -> None:
    column = Column("x", ColumnType.INT32, (2,))
    values = torch.tensor([[-5, 7]], dtype=torch.int32)
    assert features(column, values, largest=-1).tolist() == [[-5, 7]]


def test_categories_count_each_at_its_place() -> None:
    column = Column("x", ColumnType.INT64, (2,), num_values=3)
    # Of place 0 the value 2, of place 1 the value 0.
    assert features(column, torch.tensor([[2, 0]])).tolist() == [[0, 0, 1, 1, 0, 0]]
    # How many there are follows from the data where the column does not say.
    known = Column("x", ColumnType.INT64, (2,))
    assert features(known, torch.tensor([[2, 0]]), largest=2).shape == (1, 6)


def test_words_count_wherever_they_are() -> None:
    places = module._MAX_PLACES + 1
    column = Column("x", ColumnType.INT64, (places,), num_values=4)
    words = torch.zeros(1, places, dtype=torch.int64)
    words[0, [3, 30]] = 2
    assert features(column, words).tolist() == [[places - 2, 0, 2, 0]]


def test_a_projection_is_that_of_the_counts() -> None:
    kinds, places = 5000, 40
    column = Column("x", ColumnType.INT64, (places,), num_values=kinds)
    words = torch.randint(kinds, (3, places), generator=torch.Generator().manual_seed(0))
    counts = torch.stack([row.bincount(minlength=kinds) for row in words]).float()
    drawn = torch.randn(kinds, 512, generator=torch.Generator().manual_seed(3)) / 512**0.5
    torch.testing.assert_close(features(column, words), counts @ drawn)


def test_columns_stand_side_by_side() -> None:
    columns = (Column("a", ColumnType.FLOAT32, ()), Column("b", ColumnType.FLOAT32, (2,)))
    extract = column_values(columns, lambda _: 0, lambda _: torch.Generator())
    stored = {"b": torch.tensor([[2.0, 3.0]]), "a": torch.tensor([1.0])}
    assert extract(stored).tolist() == [[1, 2, 3]]
