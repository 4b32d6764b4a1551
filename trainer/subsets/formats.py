"""File formats of a subset: exact, and readable without this package.

The suffix decides. Every format has N indices (int64, ascending), N weights (float32), perhaps
N x C soft labels (float16), and a metadata object {"format": "lipt-subset", "version": 1,
"strategy", "fingerprint", "digest", "manifest"}.

.npy      npy records one after the other in one file, as `numpy.save` on an open file writes
          them: `<i8` N, `<f4` N, `|u1` with the metadata as UTF-8 JSON, and `<f2` N x C.
          `numpy.load(path)` reads the first: the indices.
.csv      header `index,weight,soft_0,...`, one row per example. The metadata is JSON in a file
          beside it: NAME.manifest.json of NAME.csv.
.json     the metadata object with more keys, "indices", "weights" and "soft_labels".
.parquet  columns `index` int64, `weight` float32 and `soft_labels`, lists of float32; the metadata
          is JSON in the schema's metadata under the key `lipt`.

In text, a number is the shortest decimal of its float64 value, which reads back exactly.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lipt.common.errors import MissingExtraError, SubsetError
from lipt.trainer.writing.files import import_pyarrow

_FORMAT, _VERSION = "lipt-subset", 1
_CSV_HEADER = ["index", "weight"]
_SOFT = "soft_labels"
_NEEDED_FOR = "A subset as .parquet"
# This many rows become Python's numbers at a time.
_ROWS = 16_384


class Content(NamedTuple):
    """A file's columns and metadata, not yet checked against the digest."""

    indices_N: NDArray[np.int64]
    weights_N: NDArray[np.float32]
    metadata: Mapping[str, Any]
    soft_labels_NC: NDArray[np.float16] | None = None


Codec = tuple[Callable[[Content, BinaryIO], None], Callable[[BinaryIO], Content]]


def encode(content: Content, path: Path, file: BinaryIO) -> None:
    """Write a subset in the format of `path`'s suffix."""
    write, _ = codec_of(path)
    write(content._replace(metadata=_complete(content)), file)


def manifest_beside(path: Path) -> Path | None:
    """The file with the metadata of a .csv; None for other formats."""
    return path.with_suffix(".manifest.json") if path.suffix.lower() == ".csv" else None


def encode_manifest(content: Content) -> bytes:
    """The content of the file beside a .csv."""
    return f"{_to_json(_complete(content))}\n".encode()


def decode(file: BinaryIO, path: Path, manifest: bytes = b"") -> Content:
    """Read a subset in the format of `path`'s suffix.

    Args:
        file: at its beginning.
        path: its name.
        manifest: the content of the file beside a .csv.

    Raises:
        SubsetError: the suffix is none of the four, or the file is damaged.
        MissingExtraError: .parquet without pyarrow.
    """
    _, read = codec_of(path)
    try:
        content = read(file)
        if manifest_beside(path) is not None:
            content = content._replace(metadata=_parse_metadata(manifest))
    except MissingExtraError:
        raise
    # numpy, csv, json and pyarrow raise all kinds for damaged bytes, MemoryError included.
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise SubsetError(
            f"{path} does not hold a subset ({reason}). It is damaged, or not written "
            "by Subset.save: get it again with 'lipt subset get'."
        ) from error
    found = content.metadata.get("format"), content.metadata.get("version")
    if found != (_FORMAT, _VERSION):
        raise SubsetError(
            f"{path} is of format {found[0]!r} version {found[1]!r}; this version of lipt reads "
            f"{_FORMAT!r} version {_VERSION}. Update lipt, or get the subset again."
        )
    return content


def codec_of(path: Path) -> Codec:
    """The writer and reader of a file of this name; SubsetError for another suffix."""
    codec = _CODECS.get(path.suffix.lower())
    if codec is None:
        raise SubsetError(
            f"'{path}' has the suffix {path.suffix!r}; a subset is written as one of "
            f"{', '.join(_CODECS)}. Choose one of these suffixes."
        )
    return codec


def _complete(content: Content) -> dict[str, Any]:
    return {**content.metadata, "format": _FORMAT, "version": _VERSION}


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True)


def _parse_metadata(text: str | bytes) -> dict[str, Any]:
    metadata = json.loads(text)
    if not isinstance(metadata, dict):
        raise TypeError(f"its metadata is a {type(metadata).__name__}")
    return metadata


def _encode_npy(content: Content, file: BinaryIO) -> None:
    records = [
        content.indices_N.astype("<i8", copy=False),
        content.weights_N.astype("<f4", copy=False),
        np.frombuffer(_to_json(content.metadata).encode(), dtype=np.uint8),
    ]
    if content.soft_labels_NC is not None:
        records.append(content.soft_labels_NC.astype("<f2", copy=False))
    for record in records:
        np.lib.format.write_array(file, record, version=(1, 0), allow_pickle=False)


_RECORDS = (("indices", "<i8", 1), ("weights", "<f4", 1), ("metadata", "|u1", 1), (_SOFT, "<f2", 2))


def _decode_npy(file: BinaryIO) -> Content:
    records: list[Any] = []
    for name, dtype, ndim in _RECORDS:
        ahead = file.read(1)
        file.seek(-len(ahead), os.SEEK_CUR)
        if not ahead and name == _SOFT:
            records.append(None)
            continue
        if not ahead:
            raise ValueError(f"there are no {name}")
        record = np.lib.format.read_array(file, allow_pickle=False)
        if record.dtype.str != dtype or record.ndim != ndim:
            raise ValueError(f"{name} are {record.dtype.str} of {record.ndim} dimensions")
        records.append(record)
    indices_N, weights_N, metadata, soft_labels_NC = records
    return Content(indices_N, weights_N, _parse_metadata(metadata.tobytes()), soft_labels_NC)


def _encode_csv(content: Content, file: BinaryIO) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    writer = csv.writer(text, lineterminator="\n")
    columns: list[NDArray[Any]] = [content.indices_N, content.weights_N]
    if content.soft_labels_NC is not None:
        columns += list(content.soft_labels_NC.T)
    writer.writerow(_CSV_HEADER + [f"soft_{number}" for number in range(len(columns) - 2)])
    for start in range(0, len(content.indices_N), _ROWS):
        some = slice(start, start + _ROWS)
        writer.writerows(zip(*(column[some].tolist() for column in columns), strict=True))
    text.detach()


def _decode_csv(file: BinaryIO) -> Content:
    header, *rows = csv.reader(line.decode() for line in file)
    num_soft = len(header) - len(_CSV_HEADER)
    if header != _CSV_HEADER + [f"soft_{number}" for number in range(num_soft)]:
        raise ValueError(f"its header is {','.join(header)[:100]!r}")
    indices, weights = [int(row[0]) for row in rows], [float(row[1]) for row in rows]
    if any(len(row) != len(header) for row in rows):
        raise ValueError("its rows differ in length")
    soft = [[float(chance) for chance in row[2:]] for row in rows] if num_soft else None
    return _content(indices, weights, {}, soft)


def _encode_json(content: Content, file: BinaryIO) -> None:
    columns: dict[str, Any] = {
        "indices": content.indices_N.tolist(),
        "weights": content.weights_N.tolist(),
    }
    if content.soft_labels_NC is not None:
        columns[_SOFT] = content.soft_labels_NC.tolist()
    file.write(f"{_to_json({**content.metadata, **columns})}\n".encode())


def _decode_json(file: BinaryIO) -> Content:
    metadata = _parse_metadata(file.read())
    indices, weights = metadata.pop("indices"), metadata.pop("weights")
    return _content(indices, weights, metadata, metadata.pop(_SOFT, None))


def _encode_parquet(content: Content, file: BinaryIO) -> None:
    arrow, parquet = import_pyarrow(_NEEDED_FOR)
    fields = [
        arrow.field("index", arrow.int64(), nullable=False),
        arrow.field("weight", arrow.float32(), nullable=False),
    ]
    columns: list[Any] = [content.indices_N, content.weights_N]
    if content.soft_labels_NC is not None:
        fields.append(arrow.field(_SOFT, arrow.list_(arrow.float32()), nullable=False))
        columns.append(list(content.soft_labels_NC.astype(np.float32)))
    schema = arrow.schema(fields, metadata={"lipt": _to_json(content.metadata)})
    table = arrow.table(columns, schema=schema)
    parquet.write_table(table, file)


def _decode_parquet(file: BinaryIO) -> Content:
    _, parquet = import_pyarrow(_NEEDED_FOR)
    table = parquet.read_table(file)
    indices, weights = (table.column(name).to_numpy() for name in ("index", "weight"))
    soft = table.column(_SOFT).to_pylist() if _SOFT in table.column_names else None
    return _content(indices, weights, _parse_metadata((table.schema.metadata or {})[b"lipt"]), soft)


def _content(
    indices: Any, weights: Any, metadata: Mapping[str, Any], soft_labels: Any = None
) -> Content:
    return Content(
        np.asarray(indices, dtype=np.int64),
        np.asarray(weights, dtype=np.float32),
        metadata,
        None if soft_labels is None else np.asarray(soft_labels, dtype=np.float16),
    )


_CODECS: dict[str, Codec] = {
    ".npy": (_encode_npy, _decode_npy),
    ".csv": (_encode_csv, _decode_csv),
    ".json": (_encode_json, _decode_json),
    ".parquet": (_encode_parquet, _decode_parquet),
}
