"""Feature file: vectors of another model, in one safetensors file with their labels.

X                 N x d, or N x anything: numbers of any type
y                 N class numbers from 0; floats for regression; N x C of 0 and 1 for labels
paired_features   N x p, the other half of each pair, such as an image's caption; for
                  strategies on pairs, not a model's input
class_names       in the metadata: a JSON list of the class names
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

from lipt.common.data.sources.rows import ColumnRows, is_texts
from lipt.common.data.sources.storage import Stamp, split_query
from lipt.common.errors import BlobTooLargeError, DataError, WeightsError
from lipt.common.inputs.specs import MAX_DIMENSIONS, Column, ColumnType
from lipt.common.targets.values import TargetValues, label_values, number_values
from lipt.common.weights.files import Container, read_container

_EXAMPLES, _LABELS, _PAIRED, _NAMES = "X", "y", "paired_features", "class_names"
_KNOWN = {_EXAMPLES, _LABELS, _PAIRED}

# The file may have any size, its header may not.
_MAX_BYTES = 2**50
_MAX_TENSORS = 16
_MAX_METADATA_BYTES = 2**22
_HOW = "Write safetensors.torch.save_file({'X': N x d, 'y': N class numbers}, PATH)."


def read_tensors(path: Path, remedy: str) -> Container:
    """Open a user's safetensors file, with texts in its metadata."""
    try:
        return read_container(
            path,
            max_bytes=_MAX_BYTES,
            max_tensors=_MAX_TENSORS,
            max_metadata_bytes=_MAX_METADATA_BYTES,
        )
    except (WeightsError, BlobTooLargeError) as error:
        # Its own remedy is about a model's weights.
        raise DataError(f"{error.problem}. {remedy}") from error


def features_rows(source: str, path: str) -> ColumnRows:
    """A file's examples, float32, standardized unless `?standardize=no` follows its name."""
    name, query = split_query(source, path, ("standardize",))
    file = Path(name)
    standardized = query.one_of("standardize", ("yes", "no")) == "yes"
    stamp = Stamp.of([file])
    container = read_tensors(file, _HOW)
    if not {_EXAMPLES, _LABELS} <= container.specs.keys() <= _KNOWN:
        found = ", ".join(map(repr, sorted(container.specs))) or "nothing"
        raise DataError(f"{file} holds {found}. {_HOW}")
    names = _class_names(file, container)
    labels = container.tensor(_LABELS)
    targets = _targets(file, labels, names)
    labels_N = labels.to(torch.int64) if targets is None else targets.strata_N
    examples = _floats(file, _EXAMPLES, container.tensor(_EXAMPLES), len(labels_N))
    paired_NP = None
    if _PAIRED in container.specs:
        paired_NP = _floats(file, _PAIRED, container.tensor(_PAIRED), len(labels_N))
        if paired_NP.ndim != 2 or not bool(paired_NP.isfinite().all()):
            raise DataError(
                f"{file}: {_PAIRED} has {paired_NP.ndim} dimensions, or values that are not "
                "finite. Give finite numbers, N x p."
            )
    column = Column("", ColumnType.FLOAT32, tuple(examples.shape[1:]), standardized=standardized)
    return ColumnRows(
        source=source,
        names=names or None,
        labels_N=labels_N,
        columns=(column,),
        tensors={"": examples},
        stamp=stamp,
        targets=targets,
        paired_NP=paired_NP,
    )


def _class_names(path: Path, container: Container) -> tuple[str, ...]:
    try:
        names: object = json.loads(container.metadata.get(_NAMES, "[]"))
    except (ValueError, RecursionError):
        names = None
    if not is_texts(names):
        raise DataError(
            f"{path}: {_NAMES} in its metadata is not a JSON list of texts. Write "
            f"metadata={{'{_NAMES}': json.dumps(names)}}."
        )
    return tuple(names)


def _targets(path: Path, labels: Tensor, names: tuple[str, ...]) -> TargetValues | None:
    if labels.ndim == 2:
        binary = bool(((labels == 0) | (labels == 1)).all())
        values_of = number_values if labels.is_floating_point() and not binary else label_values
        return values_of(labels, names or None, str(path))
    if labels.ndim == 1 and labels.is_floating_point():
        return number_values(labels[:, None], None, str(path))
    if labels.ndim != 1 or not len(labels):
        raise DataError(
            f"{path}: {_LABELS} is {labels.dtype} of the shape {list(labels.shape)}. Give a class "
            "number for each example, floats (regression), or N x C of 0 and 1 (multi-label)."
        )
    return None


def _floats(path: Path, name: str, values: Tensor, num_examples: int) -> Tensor:
    shape = tuple(values.shape)
    if not 2 <= len(shape) <= MAX_DIMENSIONS + 1 or shape[0] != num_examples or 0 in shape:
        raise DataError(
            f"{path}: {name} has the shape {list(shape)}, but {_LABELS} has {num_examples} labels. "
            f"Give a row of numbers for each: [{num_examples}, d]."
        )
    return values.to(torch.float32).contiguous()
