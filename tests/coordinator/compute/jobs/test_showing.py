from __future__ import annotations

import base64
import io
from pathlib import Path

import pytest
import torch
from PIL import Image

from lipt.common.config.run_config import RunConfig
from lipt.common.data.dataset import Dataset
from lipt.common.data.sources.rows import ColumnRows
from lipt.common.inputs.specs import Column, ColumnsSpec, ColumnType
from lipt.common.weights.files import pack
from lipt.coordinator.compute.context import Context
from lipt.coordinator.compute.jobs.selecting import MapExamples, ShowExamples
from lipt.core.pipeline import model_inputs
from tests.digits import digits_settings


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(digits_settings(tmp_path, "digits-test"), send=lambda _: None)


def test_pictures_come_in_the_order_that_was_asked_for(context: Context) -> None:
    found = ShowExamples((7, 2)).run(context)
    images = context.dataset.images(torch.tensor([7, 2]))
    for shown, image_CHW in zip(found, images, strict=True):
        assert shown.text == ""
        assert shown.picture is not None
        content = base64.b64decode(shown.picture.partition(",")[2])
        pixels = list(Image.open(io.BytesIO(content)).tobytes())
        assert pixels == image_CHW.flatten().tolist()
    assert ShowExamples(()).run(context) == ()


def test_of_other_examples_the_first_values_are_told(context: Context) -> None:
    columns = (Column("age", ColumnType.FLOAT32, ()), Column("text", ColumnType.INT64, (20,)))
    tensors = {"age": torch.tensor([0.5, 1.25]), "text": torch.arange(40).view(2, 20)}
    rows = ColumnRows("made up", ("a", "b"), torch.tensor([0, 1]), columns, tensors)
    vars(context)["dataset"] = Dataset(rows, "print", ColumnsSpec(columns))
    (shown,) = ShowExamples((1,)).run(context)
    assert shown.picture is None
    values = ", ".join(map(str, range(20, 32)))
    assert shown.text == f"age: 1.25; text: {values}, ..."


def test_a_map_has_equal_examples_at_one_place_in_the_unit_square(context: Context) -> None:
    config = RunConfig(model="resnet8")
    weights = context.blobs.put_bytes(pack(context.new_model(config).state_dict()))
    job = MapExamples(config, model_inputs(context, config), weights, (*range(40), 3))
    places = job.run(context)
    assert places[40] == pytest.approx(places[3])
    assert len({(round(x, 6), round(y, 6)) for x, y in places}) == 40
    assert all(0 <= value <= 1 for place in places for value in place)
