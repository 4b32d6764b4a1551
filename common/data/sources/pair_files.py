"""Pairs of image files and captions: a caption beside each image, or a table that names both.

    FOLDER/any/name.jpg      FOLDER/any/name.txt       the whole text is the caption
    FOLDER/captions.csv      or .tsv, .jsonl, .parquet, also named itself: a row for each pair, with
                             the file's name, from the table's folder on, and its caption

Captions in files are read when they are asked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lipt.common.data.sources.index import PackedNames, Stamp
from lipt.common.data.sources.table_files import (
    Cell,
    CsvTable,
    JsonlTable,
    ParquetTable,
    Table,
    named_rows,
    require_columns,
)
from lipt.common.errors import DataError

_IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".gif")
_TABLES = ("captions.csv", "captions.tsv", "captions.jsonl", "captions.parquet")
_HOW = "Put name.txt beside each name.jpg, or name a table with a column of files and of captions."


@dataclass(frozen=True)
class FoundPairs:
    """Pairs by row number."""

    source: str
    images: PackedNames
    caption: Callable[[int], str]
    stamp: Stamp

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> tuple[str, str]:
        """A row's image file and caption."""
        if not 0 <= row < len(self):
            raise IndexError(f"there is no row {row} in {self.source} with {len(self)} pairs")
        return self.images[row], self.caption(row)


def find_pairs(source: str, path: Path, *, image: str, caption: str) -> FoundPairs:
    """All pairs: of a folder by their sorted paths, of a table in its order."""
    if not path.exists():
        raise DataError(f"{source}: there is no folder or table {path}. {_HOW}")
    if not path.is_dir():
        return _of_table(source, path, image, caption)
    tables = [path / name for name in _TABLES if (path / name).exists()]
    if len(tables) > 1:
        raise DataError(
            f"{source}: {path} holds {' and '.join(table.name for table in tables)}. Name the one "
            f"to use: pairs:{tables[0]}"
        )
    return _of_table(source, tables[0], image, caption) if tables else _of_folder(source, path)


def _of_folder(source: str, folder: Path) -> FoundPairs:
    files, lonely = list[str](), list[str]()
    for at, _, names in sorted(os.walk(folder, followlinks=True)):
        there = set(names)
        for name in sorted(names):
            stem, suffix = os.path.splitext(name)  # noqa: PTH122 - of a million names
            if suffix.lower() in _IMAGES:
                (files if f"{stem}.txt" in there else lonely).append(f"{at}{os.sep}{name}")
    if lonely:
        raise DataError(
            f"{source}: {len(lonely)} images have no caption beside them: "
            f"{', '.join(lonely[:20])}. {_HOW}"
        )
    if not files:
        raise DataError(f"{source}: there is no image with a caption in {folder}. {_HOW}")
    captions = [_caption_file(file) for file in files]
    folders = sorted({os.path.dirname(file) for file in files})  # noqa: PTH120 - of a million names
    images = PackedNames.of(files)

    def caption(row: int) -> str:
        path = _caption_file(images[row])
        try:
            return Path(path).read_text(encoding="utf-8-sig").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"{source}: the caption of row {row}, {path}, cannot be read: {error}. Write it as "
                "UTF-8."
            ) from error

    return FoundPairs(source, images, caption, Stamp.of([*files, *captions], folders))


def _caption_file(image: str) -> str:
    return f"{os.path.splitext(image)[0]}.txt"  # noqa: PTH122 - of a million names


def _of_table(source: str, path: Path, image: str, caption: str) -> FoundPairs:
    table = _opened(source, path)
    require_columns(table, (image,), "image")
    require_columns(table, (caption,), "caption")
    missing, num_rows = list[int](), 0
    for names, texts in table.chunks([image, caption]):
        cells = enumerate(zip(names, texts, strict=True), start=num_rows)
        missing += [row for row, (name, text) in cells if not _text(name) or text is None]
        num_rows += len(names)
    if missing:
        raise DataError(
            f"{source}: {len(missing)} of {num_rows} rows of {table.name} lack a file name or a "
            f"caption: rows {named_rows(missing)}. Fill them in or remove them."
        )
    if not num_rows:
        raise DataError(f"{source}: {table.name} has no rows. {_HOW}")
    images = PackedNames.of(
        str(path.parent / str(name)) for (names,) in table.chunks([image]) for name in names
    )
    captions = PackedNames.of(
        str(text).strip() for (texts,) in table.chunks([caption]) for text in texts
    )
    files = [images[row] for row in range(len(images))]
    folders = sorted({os.path.dirname(file) for file in files})  # noqa: PTH120 - of a million names
    stamp = Stamp.of([*files, *table.files], [str(path), *folders])
    return FoundPairs(source, images, captions.__getitem__, stamp)


def _text(cell: Cell) -> str:
    return "" if cell is None else str(cell).strip()


def _opened(source: str, path: Path) -> Table:
    name = path.name.lower().removesuffix(".gz")
    if name.endswith((".csv", ".tsv")):
        return CsvTable(path, "\t" if name.endswith(".tsv") else ",")
    if name.endswith((".jsonl", ".ndjson")):
        return JsonlTable(path)
    if name.endswith(".parquet"):
        return ParquetTable(source, str(path))
    raise DataError(
        f"{source}: {path} is no table of pairs. Name a .csv, .tsv, .jsonl or .parquet file, or a "
        "folder."
    )
