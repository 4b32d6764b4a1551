"""Feature file: vectors of another model, in one file with their labels.

    X                 N x d, or N x anything: numbers of any type
    y                 N class numbers from 0; floats for regression; N x C of 0 and 1 for labels
    paired_features   N x p, the other half of each pair, such as an image's caption; for
                      strategies on pairs, not a model's input
    class_names       the class names: a JSON list in the metadata of a safetensors file, or an
                      array of texts in an npz file

Headers are compared with the file's size before allocation, and nothing is unpickled.
"""

from __future__ import annotations

import json
import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lipt.common.data.sources.index import Stamp
from lipt.common.data.sources.rows import ColumnRows, is_texts, numbered_classes
from lipt.common.data.sources.storage import split_query
from lipt.common.errors import BlobTooLargeError, DataError, WeightsError
from lipt.common.inputs.specs import MAX_DIMENSIONS, Column, ColumnType
from lipt.common.targets.values import TargetValues, label_values, number_values
from lipt.common.weights.files import read_container

_EXAMPLES, _LABELS, _PAIRED, _NAMES = "X", "y", "paired_features", "class_names"
_KNOWN = {_EXAMPLES, _LABELS, _PAIRED, _NAMES}

# The file may have any size, its header may not.
_MAX_BYTES = 2**50
_MAX_TENSORS = 16
_MAX_NAMES_BYTES = 2**22
_HOW = (
    "Write safetensors.torch.save_file({'X': N x d, 'y': N class numbers}, PATH), or "
    "numpy.savez(PATH, X=..., y=...)."
)


def features_rows(source: str, path: str) -> ColumnRows:
    """A file's examples, float32, standardized unless `?standardize=no` follows its name."""
    name, query = split_query(source, path, ("standardize",))
    file = Path(name)
    standardized = query.one_of("standardize", ("yes", "no")) == "yes"
    stamp = Stamp.of([file])
    tensors, names = _read_npz(file) if file.suffix == ".npz" else _read_safetensors(file)
    if not {_EXAMPLES, _LABELS} <= tensors.keys() <= _KNOWN:
        raise DataError(
            f"{file} holds {', '.join(map(repr, sorted(tensors))) or 'nothing'}. {_HOW}"
        )
    targets = _targets(file, tensors[_LABELS], names)
    labels_N = tensors[_LABELS].to(torch.int64) if targets is None else targets.strata_N
    examples = _floats(file, _EXAMPLES, tensors[_EXAMPLES], len(labels_N))
    paired_NP = None
    if _PAIRED in tensors:
        paired_NP = _floats(file, _PAIRED, tensors[_PAIRED], len(labels_N))
        if paired_NP.ndim != 2 or not bool(paired_NP.isfinite().all()):
            raise DataError(
                f"{file}: {_PAIRED} has {paired_NP.ndim} dimensions, or values that are not "
                "finite. Give finite numbers, N x p."
            )
    column = Column("", ColumnType.FLOAT32, tuple(examples.shape[1:]), standardized=standardized)
    return ColumnRows(
        source=source,
        names=names or numbered_classes(labels_N, source),
        labels_N=labels_N,
        columns=(column,),
        tensors={"": examples},
        stamp=stamp,
        targets=targets,
        paired_NP=paired_NP,
    )


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    try:
        container = read_container(
            path,
            max_bytes=_MAX_BYTES,
            max_tensors=_MAX_TENSORS,
            max_metadata_bytes=_MAX_NAMES_BYTES,
        )
    except (WeightsError, BlobTooLargeError) as error:
        # Its remedy is about a model's weights.
        raise DataError(f"{error.problem}. {_HOW}") from error
    try:
        names: Any = json.loads(container.metadata.get(_NAMES, "[]"))
    except (ValueError, RecursionError):
        names = None
    if not is_texts(names):
        raise DataError(
            f"{path}: {_NAMES} in its metadata is not a JSON list of texts. Write "
            f"metadata={{'{_NAMES}': json.dumps(names)}}."
        )
    # Unknown tensors are refused by name, unread.
    return {
        name: container.tensor(name) if name in _KNOWN else torch.empty(0)
        for name in container.specs
    }, tuple(names)


def _read_npz(path: Path) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    try:
        _require_sizes(path)
        with np.load(path, allow_pickle=False) as arrays:
            names = tuple(map(str, arrays[_NAMES].tolist())) if _NAMES in arrays else ()
            found = {name: arrays[name] for name in arrays.files if name != _NAMES}
        return {name: torch.from_numpy(array) for name, array in found.items()}, names
    except (OSError, ValueError, TypeError, KeyError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read: {error}. {_HOW}") from error


def _require_sizes(path: Path) -> None:
    """Compare the sizes in arrays' headers with the file's, before reading."""
    read_header = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.compress_type != zipfile.ZIP_STORED:
                raise ValueError("it is compressed, which hides its size")
            with archive.open(member) as file:
                major, _ = np.lib.format.read_magic(file)
                if major not in read_header:
                    raise ValueError(f"{member.filename} has version {major} of the format")
                shape, _, dtype = read_header[major](file)
                declared, found = math.prod(shape) * dtype.itemsize, member.file_size - file.tell()
                if dtype.hasobject or declared != found:
                    raise ValueError(
                        f"{member.filename} declares {declared} bytes of {dtype}, but has {found}"
                    )


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
