"""Parquet shards: a subset's images in Hugging Face's convention for image columns.

Columns: `image`, a struct of `bytes` and `path`; `label`, int64, with the classes' names where
`datasets` looks for them; `id`, int64, the row number in the data; `weight`, float32. Examples with
several labels, or with numbers, have a list `target` in place of the label.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from lipt.trainer.subsets.chosen_images import ChosenImage
from lipt.trainer.writing.parquet import import_pyarrow

NAME = "train-{number:05d}-of-{count:05d}.parquet"
_NEEDED_FOR = "writing Parquet files"
# What lies in memory at a time, and what a reader reads at a time.
_ROWS_PER_GROUP = 256
_BYTES_PER_GROUP = 32 * 2**20


@dataclass(frozen=True)
class ParquetShards:
    """Writes shards of one subset.

    Attributes:
        class_names: a name for each label.
        of_classes: whether examples have a class each, and not labels or numbers.

    Raises:
        MissingExtraError: pyarrow is not installed.
    """

    class_names: Sequence[str]
    of_classes: bool

    def __post_init__(self) -> None:
        """Ask for pyarrow before anything is written."""
        import_pyarrow(_NEEDED_FOR)

    def __call__(self, path: Path, images: Iterator[ChosenImage]) -> None:
        """Write images to a Parquet file."""
        arrow, parquet = import_pyarrow(_NEEDED_FOR)
        schema = self._schema(arrow)
        with parquet.ParquetWriter(path, schema) as writer:
            for group in _groups(images):
                writer.write_table(arrow.Table.from_pylist(list(map(_row, group)), schema=schema))

    def _schema(self, arrow: Any) -> Any:
        image = arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])
        features: dict[str, Any] = {"image": {"_type": "Image"}}
        if self.of_classes:
            target = arrow.field("label", arrow.int64())
            features["label"] = {"_type": "ClassLabel", "names": list(self.class_names)}
        else:
            target = arrow.field("target", arrow.list_(arrow.float32()))
            features["target"] = {"_type": "Sequence", "feature": _value("float32")}
        features |= {"id": _value("int64"), "weight": _value("float32")}
        columns = [arrow.field("id", arrow.int64()), arrow.field("weight", arrow.float32())]
        described = json.dumps({"info": {"features": features}})
        return arrow.schema(
            [arrow.field("image", image), target, *columns], metadata={"huggingface": described}
        )


def _value(dtype: str) -> dict[str, str]:
    return {"_type": "Value", "dtype": dtype}


def _row(image: ChosenImage) -> dict[str, Any]:
    file = {"bytes": image.content, "path": f"{image.row:012d}.{image.suffix}"}
    named = "label" if isinstance(image.target, int) else "target"
    return {"image": file, named: image.target, "id": image.row, "weight": image.weight}


def _groups(images: Iterator[ChosenImage]) -> Iterator[list[ChosenImage]]:
    """Images in groups that end at so many rows or bytes."""
    for first in images:
        group, size_bytes = [], 0
        for image in chain([first], images):
            group.append(image)
            size_bytes += len(image.content)
            if len(group) == _ROWS_PER_GROUP or size_bytes >= _BYTES_PER_GROUP:
                break
        yield group
