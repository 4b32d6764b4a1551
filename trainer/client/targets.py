"""Targets of mixtures: a caller's examples, read like a coordinator's data and packed for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lipt.core.mixture.mixture import most_of
from lipt.data.example_file import pack_examples
from lipt.data.held_out import DataForm
from lipt.data.inputs.specs import Column, ColumnsSpec, ColumnType, ImageSpec
from lipt.data.targets.kinds import TargetKind
from lipt.trainer.views import DatasetView


def pack_target(
    data: DatasetView, target_data: Any, target: str | None, allow_modules: Sequence[str]
) -> bytes:
    """The file of a target, or of as many of its examples as are used; errors as `open_data`."""
    form = _form_of(data)
    opened = form.open("the target", target_data, target=target, allow_modules=allow_modules)
    return pack_examples(most_of(opened), len(opened))


def _form_of(data: DatasetView) -> DataForm:
    """How other examples are read as the coordinator's are."""
    columns = [Column(one.name, ColumnType(one.type), one.shape) for one in data.columns]
    other = data.other_target
    return DataForm(
        ColumnsSpec(tuple(columns)) if columns else ImageSpec(*data.image_shape),
        TargetKind.CLASS if other is None else TargetKind(other.kind),
        data.class_names if other is None else data.target_names,
        numbers=data.number_columns,
        categories=data.category_columns,
        source=data.source,
    )
