from __future__ import annotations

import pytest

from lipt.common.inputs.specs import Column, ColumnsSpec, ColumnType, ImageSpec, InputSpec
from lipt.pretraining import default_model

WORDS = Column("", ColumnType.INT64, (20,), num_values=1000)
NUMBERS = Column("numbers", ColumnType.FLOAT32, (30,), standardized=True)
CATEGORIES = Column("categories", ColumnType.INT64, (4,), num_values=100)


@pytest.mark.parametrize(
    ("inputs", "model"),
    [
        (ImageSpec(1, 8, 8), "resnet8"),
        (ImageSpec(3, 64, 64), "resnet8"),
        (ImageSpec(3, 65, 64), "torchvision:resnet18"),
        (ColumnsSpec((NUMBERS,)), "mlp"),
        (ColumnsSpec((NUMBERS, CATEGORIES)), "mlp"),
        (ColumnsSpec((WORDS,)), "text:tiny"),
        # Whole numbers of which nothing is known are no words.
        (ColumnsSpec((Column("", ColumnType.INT64, (20,)),)), "mlp"),
    ],
)
def test_the_model_suits_the_kind_of_data(inputs: InputSpec, model: str) -> None:
    assert default_model(inputs) == model
