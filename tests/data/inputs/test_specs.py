from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from lipt.common.errors import ConfigError
from lipt.data.inputs.specs import (
    Column,
    ColumnFormat,
    ColumnsFormat,
    ColumnsSpec,
    ColumnType,
    ImageFormat,
    ImageSpec,
    call_model,
    spec_of,
)

TOKENS = Column("tokens", ColumnType.INT64, (4,), num_values=100)
MASK = Column("mask", ColumnType.BOOL, (4,))


class Difference(nn.Module):
    def forward(self, tokens: Tensor, mask: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=tokens - mask.to(tokens.dtype))


def test_specs_describe_their_inputs_and_create_zeros() -> None:
    assert str(ImageSpec(3, 32, 30)) == "3x32x30 images"
    assert str(ColumnsSpec((TOKENS, MASK))) == "tokens int64[4], mask bool[4]"
    assert str(ColumnsSpec((Column("", ColumnType.FLOAT32, (2, 3)),))) == "float32[2x3]"
    alone = ColumnsSpec((Column("", ColumnType.FLOAT32, (2,)),)).zeros(3)
    assert isinstance(alone, Tensor)
    assert alone.shape == (3, 2)
    named = ColumnsSpec((TOKENS, MASK)).zeros(3)
    assert not isinstance(named, Tensor)
    assert {name: (part.dtype, tuple(part.shape)) for name, part in named.items()} == {
        "tokens": (torch.int64, (3, 4)),
        "mask": (torch.bool, (3, 4)),
    }


def test_incompatible_columns_are_refused() -> None:
    for names in (("a", "a"), ("a", "")):
        with pytest.raises(ConfigError, match="several need names that differ"):
            ColumnsSpec(tuple(Column(name, ColumnType.BOOL, ()) for name in names))
    with pytest.raises(ConfigError, match="'tokens' of int64 cannot be standardized"):
        Column("tokens", ColumnType.INT64, (4,), standardized=True)


def test_one_tensor_is_an_argument_and_several_are_keywords() -> None:
    assert call_model(nn.Identity(), torch.ones(2)).tolist() == [1, 1]
    inputs = {"mask": torch.tensor([True, False]), "tokens": torch.tensor([5, 7])}
    assert call_model(Difference(), inputs).tolist() == [4, 7]


SIZES = Column("sizes", ColumnType.FLOAT32, (2, 3), standardized=True)


def test_a_format_without_statistics_is_a_spec() -> None:
    image = ImageFormat(3, 8, 9, mean=(0.5,) * 3, std=(0.5,) * 3)
    assert spec_of(image) == ImageSpec(3, 8, 9)
    columns = ColumnsFormat((ColumnFormat(TOKENS), ColumnFormat(SIZES, (0.0,) * 3, (1.0,) * 3)))
    assert spec_of(columns) == ColumnsSpec((TOKENS, SIZES))
    zeros, ones = (0.0,) * 4, (1.0,) * 4
    for column, mean, std in (
        (SIZES, (), ()),
        (SIZES, zeros[:3], (1.0, 1.0, 0.0)),
        (TOKENS, zeros, ones),
    ):
        with pytest.raises(ConfigError, match="do not fit the column"):
            ColumnFormat(column, mean, std)


def test_a_column_has_a_name_that_can_be_sent() -> None:
    with pytest.raises(ConfigError, match=r"name 'caf\\udce9' is not UTF-8"):
        Column("caf\udce9", ColumnType.FLOAT32)
