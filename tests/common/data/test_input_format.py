import math

import pytest
import torch

from lipt.common.data import input_format, open_dataset
from lipt.common.data.input_format import normalization
from lipt.common.data.loading import load
from lipt.common.data.sources.rows import ColumnRows
from lipt.common.inputs.model_input import to_model_input
from lipt.common.inputs.specs import Column, ColumnFormat, ColumnsFormat, ColumnType, ImageFormat
from tests.common.data.columns import SIZES, TOKENS, column_rows


def test_statistics_are_per_entry_or_channel_of_the_training_examples() -> None:
    data = load(column_rows())
    found = input_format(data, torch.tensor([2, 0]), seed=0)
    # Of 1 and 6: the mean is 3.5, the population's deviation 2.5.
    expected = ColumnsFormat((ColumnFormat(TOKENS), ColumnFormat(SIZES, (3.5,), (2.5,))))
    assert found == expected
    rows = column_rows()
    column = Column("sizes", ColumnType.FLOAT32, (2, 2), standardized=True)
    values = torch.tensor([[[0.0, 7.0], [2.0, 7.0]]] * 2 + [[[4.0, 7.0], [6.0, 7.0]]])
    rows = type(rows)("made", None, rows.labels_N, (column,), {"sizes": values})
    found = input_format(load(rows), torch.arange(3), seed=0)
    assert isinstance(found, ColumnsFormat)
    # 0, 2, 0, 2, 4, 6 in one place, and 7 in the other, whose deviation of 0 becomes 1.
    mean, squares = 14 / 6, (0 + 4 + 0 + 4 + 16 + 36) / 6
    assert found.columns[0].mean == pytest.approx((mean, 7.0))
    assert found.columns[0].std == pytest.approx((math.sqrt(squares - mean**2), 1.0))
    data = open_dataset("digits")
    figures = normalization(data, torch.arange(100), 3)
    assert input_format(data, torch.arange(100), 3) == ImageFormat(1, 8, 8, *figures)


def test_an_extreme_value_is_clipped_and_leaves_the_statistics_usable() -> None:
    values_N = torch.tensor([*map(float, range(9)), 1e12])
    rows = ColumnRows("made", None, torch.arange(10) % 2, (SIZES,), {"sizes": values_N})
    found = input_format(load(rows), torch.arange(10), seed=0)
    assert isinstance(found, ColumnsFormat)
    # Quartiles 2.25 and 6.75: the upper fence is 6.75 + 5 * 4.5.
    cut_N = [*range(9), 29.25]
    mean = sum(cut_N) / 10
    assert found.columns[0].mean == pytest.approx((mean,))
    deviation = math.sqrt(sum((value - mean) ** 2 for value in cut_N) / 10)
    assert found.columns[0].std == pytest.approx((deviation,))
    inputs = to_model_input({"sizes": values_N}, found, "cpu")
    assert isinstance(inputs, dict)
    assert inputs["sizes"][-1] == 10
    assert inputs["sizes"][0] == pytest.approx(-mean / deviation)


def test_a_column_that_is_mostly_zero_keeps_its_rare_values() -> None:
    values_N = torch.tensor([0.0] * 9 + [5.0])
    rows = ColumnRows("made", None, torch.arange(10) % 2, (SIZES,), {"sizes": values_N})
    found = input_format(load(rows), torch.arange(10), seed=0)
    assert found == ColumnsFormat((ColumnFormat(SIZES, (0.5,), (1.5,)),))
