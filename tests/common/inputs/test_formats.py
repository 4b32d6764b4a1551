from __future__ import annotations

import pytest

from lipt.common.errors import ConfigError
from lipt.common.images.formats import ImageFormat
from lipt.common.inputs.specs import (
    Column,
    ColumnFormat,
    ColumnsFormat,
    ColumnsSpec,
    ColumnType,
    ImageSpec,
    spec_of,
)

TOKENS = Column("tokens", ColumnType.INT64, (5,), num_values=9)
SIZES = Column("sizes", ColumnType.FLOAT32, (2, 3), standardized=True)


def test_a_format_without_its_figures_is_a_spec() -> None:
    image = ImageFormat(3, 8, 9, mean=(0.5,) * 3, std=(0.5,) * 3)
    assert spec_of(image) == ImageSpec(3, 8, 9)
    columns = ColumnsFormat((ColumnFormat(TOKENS), ColumnFormat(SIZES, (0.0,) * 3, (1.0,) * 3)))
    assert spec_of(columns) == ColumnsSpec((TOKENS, SIZES))


@pytest.mark.parametrize(
    ("column", "mean", "std"),
    [
        (SIZES, (), ()),
        (SIZES, (0.0,) * 6, (1.0,) * 6),
        (SIZES, (0.0,) * 3, (1.0, 1.0, 0.0)),
        (SIZES, (0.0,) * 3, (1.0,) * 2),
        (TOKENS, (0.0,) * 5, (1.0,) * 5),
    ],
)
def test_figures_have_to_fit_the_last_dimension(
    column: Column, mean: tuple[float, ...], std: tuple[float, ...]
) -> None:
    with pytest.raises(ConfigError, match=f"do not fit the column {column.name}"):
        ColumnFormat(column, mean, std)


def test_a_number_has_one_mean() -> None:
    number = Column("age", ColumnType.FLOAT64, (), standardized=True)
    assert ColumnFormat(number, (40.0,), (10.0,)).mean == (40.0,)


def test_columns_that_no_model_could_be_given_are_refused() -> None:
    with pytest.raises(ConfigError, match="several need names that differ"):
        ColumnsFormat((ColumnFormat(TOKENS), ColumnFormat(TOKENS)))
