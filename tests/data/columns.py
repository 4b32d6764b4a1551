"""Made-up rows of columns, and folders of files."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lipt.data.inputs.specs import Column, ColumnType
from lipt.data.sources.rows import ColumnRows
from lipt.data.sources.tables.table import Table

TOKENS = Column("tokens", ColumnType.INT16, (2,), num_values=9)
SIZES = Column("sizes", ColumnType.FLOAT32, (), standardized=True)


def column_rows(**tensors: Tensor) -> ColumnRows:
    """Three rows, a label each; some tensors in place of others."""
    given = {
        "tokens": torch.tensor([[1, 2], [3, 4], [5, 0]], dtype=torch.int16),
        "sizes": torch.tensor([1.0, 2.0, 6.0]),
        **tensors,
    }
    return ColumnRows("made", None, torch.tensor([0, 1, 2]), (TOKENS, SIZES), given)


def cells_of(table: Table, *names: str) -> list[list[object]]:
    """The cells of some columns."""
    columns = table.read(names)
    return [columns[name].to_pylist() for name in names]


def write_folder(folder: Path, files: Mapping[str, bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def counted(patch: pytest.MonkeyPatch, kind: type, method: str) -> list[int]:
    """The rows that a method of rows is called with, from now on."""
    rows: list[int] = []
    original = getattr(kind, method)

    def call(self: object, row: int, *args: object) -> object:
        rows.append(row)
        return original(self, row, *args)

    patch.setattr(kind, method, call)
    return rows
