from __future__ import annotations

import math

import pytest
import torch

from lipt.common.data.loading import load_columns
from lipt.common.errors import ConfigError, DataError
from lipt.common.inputs.specs import ColumnsSpec
from tests.common.data.columns import SIZES, TOKENS, column_rows


def test_a_data_set_of_columns_gives_examples_by_their_ids() -> None:
    data = load_columns(column_rows(), image_size=None)
    assert data.inputs == ColumnsSpec((TOKENS, SIZES))
    stored = data.examples(torch.tensor([2, 0]))
    assert isinstance(stored, dict)
    assert stored["tokens"].tolist() == [[5, 0], [1, 2]]
    assert stored["sizes"].tolist() == [6.0, 1.0]
    assert {name: torch.as_tensor(value).tolist() for name, value in data[1].items()} == {
        "tokens": [3, 4],
        "sizes": 2.0,
        "label": 1,
    }
    with pytest.raises(IndexError, match="no row 3"):
        data.examples(torch.tensor([3]))


def test_columns_have_no_images() -> None:
    data = load_columns(column_rows(), image_size=None)
    with pytest.raises(DataError, match=r"made holds no images, but tokens int16\[2\], sizes"):
        data.images(torch.tensor([0]))
    with pytest.raises(ConfigError, match="Leave the image size out"):
        load_columns(column_rows(), image_size=32)


def test_every_value_counts_in_the_fingerprint() -> None:
    first = load_columns(column_rows(), image_size=None)
    assert load_columns(column_rows(), image_size=None).fingerprint == first.fingerprint
    other = column_rows(sizes=torch.tensor([1.0, 2.0, 6.5]))
    assert load_columns(other, image_size=None).fingerprint != first.fingerprint
    # int16 little-endian, then float32: 1.0 is 0x3f800000.
    assert first.raw_bytes(0) == bytes([1, 0, 2, 0, 0, 0, 0x80, 0x3F])


@pytest.mark.parametrize(
    ("name", "values", "sentence"),
    [
        ("sizes", [1.0, math.nan, math.inf], "row 1 has a value that is not finite in column 's"),
        ("tokens", [[1, 2], [3, 4], [9, 0]], r"row 2 has a value outside 0\.\.8 in column 'tokens"),
        ("tokens", [[1, -1], [3, 4], [5, 0]], r"row 0 has a value outside 0\.\.8"),
    ],
)
def test_a_value_that_no_model_can_be_given_is_named_by_its_row(
    name: str, values: list[float], sentence: str
) -> None:
    dtype = torch.int16 if name == "tokens" else torch.float32
    rows = column_rows(**{name: torch.tensor(values, dtype=dtype)})
    with pytest.raises(DataError, match=sentence):
        load_columns(rows, image_size=None)
