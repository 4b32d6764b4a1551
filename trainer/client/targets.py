"""Targets: a caller's examples, read like a run's data and packed for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lipt.common.errors import DataError
from lipt.data.example_file import pack_examples
from lipt.data.held_out import DataForm
from lipt.data.inputs.specs import Column, ColumnsSpec, ColumnType, ImageSpec
from lipt.data.joining import most_of
from lipt.data.targets.kinds import TargetKind
from lipt.trainer.views import DatasetView


def packed_targets(
    form: DataForm, target_data: Any, target: str | None, allow_modules: Sequence[str]
) -> Iterator[bytes]:
    """A file for each part of a target, of as many examples as are used; errors as `open_data`.

    target_data: labelled examples, or a mapping from the parts' names to theirs.
    """
    for name, data in parts_of(target_data).items():
        opened = form.open(name, data, target=target, allow_modules=allow_modules)
        yield pack_examples(most_of(opened), len(opened))


def parts_of(target_data: Any) -> dict[str, Any]:
    """A target's parts by name; DataError for an empty mapping."""
    parts = target_data if isinstance(target_data, Mapping) else {"the target": target_data}
    if not parts:
        raise DataError("the target has no part. Give a mapping from names to examples.")
    return {str(name): data for name, data in parts.items()}


def form_of(data: DatasetView) -> DataForm:
    """How other examples are read as the coordinator's are."""
    columns = [
        Column(column.name, ColumnType(column.type), column.shape) for column in data.columns
    ]
    other = data.other_target
    return DataForm(
        ColumnsSpec(tuple(columns)) if columns else ImageSpec(*data.image_shape),
        TargetKind.CLASS if other is None else TargetKind(other.kind),
        data.class_names if other is None else data.target_names,
        numbers=data.number_columns,
        categories=data.category_columns,
        source=data.source,
    )
