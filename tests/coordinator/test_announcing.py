from __future__ import annotations

import logging
from dataclasses import replace

from lipt.common.inputs.columns import Column, ColumnType
from lipt.common.inputs.specs import ColumnsSpec, ImageSpec
from lipt.coordinator.compute.jobs.pretraining import DataDescription
from lipt.coordinator.server import notes_on

IMAGES = DataDescription("digits", ("cat", "dog"), (3, 4), ImageSpec(1, 8, 8), "f" * 64)
NUMBERS = Column("numbers", ColumnType.FLOAT32, (3,), standardized=True)
WORDS = Column("words", ColumnType.INT64, (5,), num_values=9)


def columns(*given: Column) -> DataDescription:
    return replace(IMAGES, inputs=ColumnsSpec(given))


def test_nothing_is_said_of_data_as_everybody_expects_it() -> None:
    assert list(notes_on(IMAGES)) == []


def test_empty_classes_are_a_warning() -> None:
    ((level, said),) = notes_on(replace(IMAGES, class_counts=(7, 0)))
    assert level == logging.WARNING
    assert "dog" in said


def test_images_that_are_left_out_are_named() -> None:
    ((level, said),) = notes_on(replace(IMAGES, quarantined=(2, 5)))
    assert (level, said) == (
        logging.WARNING,
        "2 of 9 images cannot be used and are left out: 2, 5.",
    )


def test_what_images_are_scaled_to_is_said() -> None:
    found = list(notes_on(replace(IMAGES, scaling="scaled to 224 x 224")))
    assert found == [(logging.INFO, "scaled to 224 x 224.")]


def test_columns_are_named_and_those_that_are_standardized() -> None:
    ((_, some),) = notes_on(columns(NUMBERS, WORDS))
    assert (
        "numbers float32[3], words int64[5]. Models are given them standardized (numbers)," in some
    )
    ((_, every),) = notes_on(columns(NUMBERS))
    assert "Models are given them standardized, without augmentation." in every
    ((_, none),) = notes_on(columns(WORDS))
    assert "Models are given them as they are, without augmentation." in none
