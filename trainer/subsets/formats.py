"""File formats of a subset: exact, and readable without this package.

The suffix selects the format. Every format has N indices (int64, ascending), N weights (float32),
and optional N x C soft labels (float16). All but .csv have a metadata object {"format":
"lipt-subset", "version": 1, "strategy", "fingerprint", "digest", "manifest"}.

.npy      consecutive npy records, as `numpy.save` on an open file writes them: `<i8` N, `<f4` N,
          `|u1` with the metadata as UTF-8 JSON, and `<f2` N x C. `numpy.load` reads the indices.
.json     the metadata object, with the keys "indices", "weights" and "soft_labels".
.csv      an export for other programs, without metadata, so not read back: header
          `index,weight,soft_0,...`, one row per example.

In text, a number is the shortest decimal of its float64 value, which reads back exactly.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np

from lipt.common.errors import SubsetError

_FORMAT = {"format": "lipt-subset", "version": 1}
COLUMNS = (("indices", np.int64), ("weights", np.float32), ("soft_labels", np.float16))
_TEXTS = ("fingerprint", "digest", "strategy")
# Rows converted to Python numbers at a time.
_ROWS = 16_384

# A subset's fields by name: `indices`, `weights`, optional `soft_labels`, texts and `manifest`.
Fields = Mapping[str, Any]
Write = Callable[[Fields, BinaryIO], None]
Read = Callable[[BinaryIO], dict[str, Any]]
CodecT = TypeVar("CodecT", Write, Read)


def writer_of(path: Path) -> Write:
    """Return the function that writes a format; SubsetError for another suffix."""
    return _by_suffix(path, _WRITERS, "written")


def reader_of(path: Path) -> Read:
    """Return the function that reads a format; SubsetError for another suffix."""
    return _by_suffix(path, _READERS, "read")


def _by_suffix(path: Path, codecs: Mapping[str, CodecT], action: str) -> CodecT:
    codec = codecs.get(path.suffix.lower())
    if codec is None:
        raise SubsetError(
            f"'{path}' has the suffix {path.suffix!r}; a subset is {action} as one of "
            f"{', '.join(codecs)}. Choose one of these suffixes."
        )
    return codec


def _metadata(fields: Fields) -> dict[str, Any]:
    return _FORMAT | {name: fields[name] for name in (*_TEXTS, "manifest")}


def decode(file: BinaryIO, path: Path) -> dict[str, Any]:
    """Read a subset's fields; SubsetError if damaged."""
    read = reader_of(path)
    try:
        fields = read(file)
        columns = {
            name: np.asarray(fields[name], dtype=dtype)
            for name, dtype in COLUMNS
            if name != "soft_labels" or name in fields
        }
    # numpy and json raise any error for damaged bytes, MemoryError included.
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise SubsetError(
            f"{path} does not hold a subset ({reason}). It is damaged, or not written "
            "by Subset.save: get it again with 'lipt subset get'."
        ) from error
    found = fields.pop("format", None), fields.pop("version", None)
    if found != tuple(_FORMAT.values()):
        raise SubsetError(
            f"{path} is of format {found[0]!r} version {found[1]!r}; this version of lipt reads "
            "'lipt-subset' version 1. Update lipt, or get the subset again."
        )
    texts = all(isinstance(fields.get(name), str) for name in _TEXTS)
    if not texts or not isinstance(fields.get("manifest"), dict):
        raise SubsetError(
            f"{path} lacks its fingerprint, digest, strategy or manifest. Get it again."
        )
    return columns | {name: fields[name] for name in (*_TEXTS, "manifest")}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True)


def _object(text: str | bytes) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise TypeError(f"its metadata is a {type(found).__name__}")
    return found


_RECORDS = (
    ("indices", "<i8", 1),
    ("weights", "<f4", 1),
    ("metadata", "|u1", 1),
    ("soft_labels", "<f2", 2),
)


def _encode_npy(fields: Fields, file: BinaryIO) -> None:
    metadata = np.frombuffer(_json(_metadata(fields)).encode(), dtype=np.uint8)
    records = {**fields, "metadata": metadata}
    for name, dtype, _ in _RECORDS:
        if records[name] is not None:
            record = records[name].astype(dtype, copy=False)
            np.lib.format.write_array(file, record, version=(1, 0), allow_pickle=False)


def _decode_npy(file: BinaryIO) -> dict[str, Any]:
    records: dict[str, Any] = {}
    for name, dtype, ndim in _RECORDS:
        ahead = file.read(1)
        file.seek(-len(ahead), os.SEEK_CUR)
        if not ahead and name == "soft_labels":
            break
        if not ahead:
            raise ValueError(f"there are no {name}")
        record = np.lib.format.read_array(file, allow_pickle=False)
        if record.dtype.str != dtype or record.ndim != ndim:
            raise ValueError(f"{name} are {record.dtype.str} of {record.ndim} dimensions")
        records[name] = record
    return records | _object(records.pop("metadata").tobytes())


def _encode_csv(fields: Fields, file: BinaryIO) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    writer = csv.writer(text, lineterminator="\n")
    columns = [fields["indices"], fields["weights"]]
    if fields["soft_labels"] is not None:
        columns += list(fields["soft_labels"].T)
    writer.writerow(["index", "weight"] + [f"soft_{number}" for number in range(len(columns) - 2)])
    for start in range(0, len(columns[0]), _ROWS):
        some = slice(start, start + _ROWS)
        writer.writerows(zip(*(column[some].tolist() for column in columns), strict=True))
    text.detach()


def _encode_json(fields: Fields, file: BinaryIO) -> None:
    lists = {
        name: value.tolist() for name, value in fields.items() if isinstance(value, np.ndarray)
    }
    file.write(f"{_json(_metadata(fields) | lists)}\n".encode())


def _decode_json(file: BinaryIO) -> dict[str, Any]:
    return _object(file.read())


_WRITERS = {".npy": _encode_npy, ".json": _encode_json, ".csv": _encode_csv}
_READERS = {".npy": _decode_npy, ".json": _decode_json}
