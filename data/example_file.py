"""Example file: labelled examples that travel to be read as a data set's own, such as a target.

It has the tensors of a shard (`lipt.data.shard`) for images of the data set's size, image files or
columns, and under "lipt.examples" in its metadata JSON: `names` of the classes, labels or numbers;
`kind`, the target's; `flagged`, whether the second half of the first column flags missing numbers
of the first half; and `num_given`, the examples before some were drawn.

A file's sender is not trusted: the header, the number of examples and every value are checked.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from lipt.common.errors import DataError
from lipt.common.nested import parse_json
from lipt.common.tensor_files import Container
from lipt.data.dataset import Dataset
from lipt.data.inputs.model_input import Stored
from lipt.data.inputs.specs import (
    Column,
    ColumnFormat,
    ColumnsFormat,
    ColumnType,
    ImageFormat,
    ImageSpec,
    InputFormat,
)
from lipt.data.shard import (
    COLUMN,
    MAX_COLUMN_TENSORS,
    EncodedImages,
    examples_of,
    pack_shard,
    shard_container,
)
from lipt.data.sources.rows import ArrayRows, ColumnRows, Labels, Rows
from lipt.data.targets.kinds import TargetKind
from lipt.data.targets.values import (
    MultiLabel,
    Regression,
    SingleLabel,
    Target,
    TargetValues,
    label_values,
    number_values,
    token_values,
)

_KEY = "lipt.examples"
_MAX_METADATA_BYTES = 2**22
_NAME = "the target"
_REMEDY = "Give labelled examples to lipt mixture get, which packs them."


class ExampleFacts(BaseModel):
    """The metadata of an example file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    names: Annotated[tuple[str, ...], Field(max_length=100_000)]
    kind: TargetKind
    flagged: bool = False
    num_given: Annotated[int, Field(ge=1, lt=2**53)]

    def target(self, pool: Dataset) -> Target:
        """The target that the file's values are checked against."""
        number = len(self.names)
        match self.kind:
            case TargetKind.TOKENS if pool.target.kind is TargetKind.TOKENS:
                # Of the pool's vocabulary and length.
                return pool.target
            case TargetKind.CLASS if number:
                return SingleLabel(number)
            case TargetKind.CLASSES if number:
                return MultiLabel(number)
            case TargetKind.NUMBER if number:
                return Regression((0.0,) * number, (1.0,) * number)
        raise DataError(
            f"{_NAME} has {self.kind.words} targets with {number} names, and {pool.source} has "
            f"{pool.target}. Give examples of the same kind."
        )


def pack_examples(dataset: Dataset, num_given: int) -> bytes:
    """All examples of a data set as a file."""
    targets, rows = dataset.rows.targets, dataset.rows
    facts = ExampleFacts(
        names=dataset.class_names if targets is None else targets.names,
        kind=dataset.target.kind,
        flagged=isinstance(rows, ColumnRows) and rows.flagged,
        num_given=num_given,
    )
    return pack_shard(dataset, torch.arange(len(dataset)), {_KEY: facts.model_dump_json()})


def open_examples(source: bytes | Path, pool: Dataset, *, max_examples: int) -> tuple[Dataset, int]:
    """The examples of an untrusted file, and how many there were before some were drawn.

    Raises DataError for other content, too many examples, and examples of another form than the
    pool's; `comparable` matches the rest.
    """
    container = shard_container(
        source,
        MAX_COLUMN_TENSORS,
        _MAX_METADATA_BYTES,
        called=f"{_NAME}'s file",
        remedy=_REMEDY,
    )
    try:
        facts = ExampleFacts.model_validate(parse_json(container.metadata.get(_KEY, "null")))
    except (ValidationError, ValueError) as error:
        raise DataError(
            f"{_NAME}'s file has no description of its examples ({type(error).__name__}). {_REMEDY}"
        ) from error
    target = facts.target(pool)
    labels = container.specs.get("labels" if facts.kind is TargetKind.CLASS else "targets")
    num_examples = labels.shape[0] if labels is not None and labels.shape else 0
    if not 1 <= num_examples <= max_examples:
        raise DataError(
            f"{_NAME} has {num_examples} examples; from 1 to {max_examples} are taken. Draw some."
        )
    inputs = _inputs(container, pool)
    shard = examples_of(container, inputs, num_examples=num_examples, target=target)
    targets_N = shard.targets_N
    if facts.kind is TargetKind.CLASS:
        read = Labels(targets_N, facts.names)
    else:
        targets = _values(targets_N, facts, target)
        read = Labels(targets.strata_N, None, targets)
    stored = shard.examples.all() if isinstance(shard.examples, EncodedImages) else shard.examples
    rows = _rows(stored, inputs, read, facts)
    spec = inputs.spec if isinstance(inputs, ColumnsFormat) else pool.inputs
    return Dataset(rows, rows.fingerprint(), spec), facts.num_given


def _values(targets_N: Tensor, facts: ExampleFacts, target: Target) -> TargetValues:
    if facts.kind is TargetKind.TOKENS:
        return token_values(targets_N, target.num_outputs)
    values_of = label_values if facts.kind is TargetKind.CLASSES else number_values
    return values_of(targets_N, facts.names, _NAME)


def _inputs(container: Container, pool: Dataset) -> InputFormat:
    """The format of the file's examples: the pool's images, or columns of the pool's names."""
    if isinstance(pool.inputs, ImageSpec):
        channels = pool.inputs.channels
        return ImageFormat(*pool.inputs.shape, (0.0,) * channels, (1.0,) * channels)
    columns = []
    for column in pool.inputs.columns:
        spec = container.specs.get(COLUMN + column.name)
        if spec is None or not spec.shape:
            raise DataError(
                f"{_NAME} has no column {column.name!r} as {pool.source} has: {pool.inputs}. Give "
                "examples of the same form."
            )
        kind = ColumnType.of(spec.dtype)
        columns.append(
            Column(column.name, kind, spec.shape[1:], column.num_values, column.standardized)
        )
    return ColumnsFormat(tuple(ColumnFormat(column, *_plain(column)) for column in columns))


def _plain(column: Column) -> tuple[tuple[float, ...], tuple[float, ...]]:
    places = (column.shape or (1,))[-1] if column.standardized else 0
    return (0.0,) * places, (1.0,) * places


def _rows(stored: Stored, inputs: InputFormat, read: Labels, facts: ExampleFacts) -> Rows:
    labelled = (_NAME, read.names, read.labels_N)
    if isinstance(inputs, ColumnsFormat):
        tensors = stored if isinstance(stored, dict) else {"": stored}
        columns = inputs.spec.columns
        flagged = facts.flagged and columns[0].standardized and columns[0].shape[-1] % 2 == 0
        return ColumnRows(*labelled, columns, tensors, targets=read.targets, flagged=flagged)
    assert isinstance(stored, torch.Tensor)  # noqa: S101 - images are one tensor
    return ArrayRows(*labelled, stored.numpy(), targets=read.targets)
