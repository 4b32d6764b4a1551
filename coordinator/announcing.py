"""Announcing: what a coordinator says of its data when it begins to serve; pure."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from lipt.common.inputs.specs import ColumnsSpec
from lipt.common.targets.kinds import TargetKind
from lipt.common.text import empty_classes
from lipt.coordinator.compute.jobs.pretraining import DataDescription

_MOST_NAMED = 20


def notes_on(data: DataDescription) -> Iterator[tuple[int, str]]:
    """What is not as everybody expects of data: a level of `logging`, and a sentence."""
    if ids := data.quarantined:
        named = ", ".join(map(str, ids[:_MOST_NAMED]))
        more = " and more" if len(ids) > _MOST_NAMED else ""
        yield (
            logging.WARNING,
            f"{len(ids)} of {data.num_rows} images cannot be used and are left out: {named}{more}.",
        )
    if data.scaling:
        yield logging.INFO, f"{data.scaling}."
    if data.other_target is not None:
        yield logging.INFO, _on_target(data)
    elif empty := empty_classes(data.class_names, data.class_counts):
        yield logging.WARNING, f"{empty}. Models get an output for each of these."
    if isinstance(data.inputs, ColumnsSpec):
        yield logging.INFO, _on_columns(data.inputs)


def _on_target(data: DataDescription) -> str:
    kind = data.target.kind
    by = "quantile" if kind is TargetKind.NUMBER else "the rarest label"
    return (
        f"{data.target} to be told of each example ({kind.words}). Splits and equal shares are by "
        f"{by}, in {len(data.class_names)} groups; accuracies are the {kind.score_name}; "
        "strategies that need classes are refused."
    )


def _on_columns(inputs: ColumnsSpec) -> str:
    standardized = [column for column in inputs.columns if column.standardized]
    names = ", ".join(column.name for column in standardized)
    told = f"standardized ({names})" if len(standardized) < len(inputs.columns) else "standardized"
    return (
        f"its examples are no images, but {inputs}. Models are given them "
        f"{told if standardized else 'as they are'}, without augmentation."
    )
