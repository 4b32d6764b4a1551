"""Shapes: B examples, C classes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from lipt.common.errors import ConfigError
from lipt.common.inputs.columns import Column, ColumnType
from lipt.common.inputs.specs import ColumnsSpec, ImageSpec, InputSpec, call_model
from lipt.common.models import find_head
from lipt.common.models.models import linear, mlp

Build = Callable[..., nn.Module]

NUMBERS = Column("numbers", ColumnType.FLOAT32, (2, 3), standardized=True)
CATEGORIES = Column("categories", ColumnType.INT64, (4,), num_values=50)
FLAG = Column("flag", ColumnType.BOOL, ())
ALONE = Column("", ColumnType.FLOAT16, (3,))


@pytest.mark.parametrize("build", [linear, mlp])
@pytest.mark.parametrize(
    ("inputs", "width"),
    [
        (ColumnsSpec((NUMBERS, CATEGORIES, FLAG)), 6 + 4 * 16 + 16),
        (ColumnsSpec((ALONE,)), 3),
        (ImageSpec(1, 4, 5), 20),
    ],
)
def test_every_value_of_an_example_goes_into_the_first_layer(
    build: Build, inputs: InputSpec, width: int
) -> None:
    model = build(num_classes=7, inputs=inputs)
    first = next(module for module in model.modules() if isinstance(module, nn.Linear))
    assert first.in_features == width
    assert find_head(model)[0] == "fc"
    for device in ("cpu", "meta"):
        assert call_model(model.to(device), inputs.zeros(5, device)).shape == (5, 7)


def test_a_line_has_no_hidden_layer_and_an_mlp_two_of_256() -> None:
    inputs = ColumnsSpec((ALONE,))
    sizes = [
        [
            tuple(module.weight.shape)
            for module in build(num_classes=2, inputs=inputs).modules()
            if isinstance(module, nn.Linear)
        ]
        for build in (linear, mlp)
    ]
    assert sizes == [[(2, 3)], [(256, 3), (256, 256), (2, 256)]]


def test_places_of_a_column_share_its_embedding() -> None:
    inputs = ColumnsSpec((Column("", ColumnType.INT16, (2,), num_values=5),))
    model = linear(num_classes=2, inputs=inputs)
    embedded = model.get_submodule("inputs")(torch.tensor([[3, 3]], dtype=torch.int16))
    assert torch.equal(embedded[0, :16], embedded[0, 16:])


@pytest.mark.parametrize("build", [linear, mlp])
def test_a_class_that_a_category_or_a_number_decides_is_learned_in_20_steps(build: Build) -> None:
    torch.manual_seed(0)
    numbers_BD, codes_B = torch.randn(64, 6), torch.randint(0, 2, (64,))
    labels_B = 2 * codes_B + (numbers_BD[:, 0] > 0)
    batch = {
        "numbers": numbers_BD.view(64, 2, 3),
        "categories": codes_B[:, None].expand(64, 4).contiguous(),
    }
    model = build(num_classes=4, inputs=ColumnsSpec((NUMBERS, CATEGORIES)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(20):
        optimizer.zero_grad()
        cross_entropy(call_model(model, batch), labels_B).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert (call_model(model, batch).argmax(dim=1) == labels_B).float().mean() > 0.9


@pytest.mark.parametrize("build", [linear, mlp])
def test_whole_numbers_of_an_unknown_range_are_refused(build: Build) -> None:
    column = Column("age", ColumnType.INT64, (1,))
    with pytest.raises(ConfigError, match=r"cannot take the column 'age int64\[1\]'.* as float32"):
        build(num_classes=2, inputs=ColumnsSpec((column,)))
