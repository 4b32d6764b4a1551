"""Results: a line of JSON per measured cell, on disk as soon as it is there."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import json_lines
from benchmarks.pretraining_price.cells import Cell
from benchmarks.pretraining_price.measuring import Price


@dataclass(frozen=True)
class Row:
    """A price, and where and when it was measured.

    load_averages: of one minute, before and after.
    """

    price: Price
    machine: str
    versions: dict[str, str]
    load_averages: tuple[float, float]
    measured_at: str


def read_rows(path: Path) -> dict[Cell, Row]:
    """What there is, by cell; of several of one cell the last, and no line that a kill has cut."""
    rows: dict[Cell, Row] = {}
    for found in json_lines.read(path):
        price = Price(**found.pop("price"))
        before, after = found.pop("load_averages")
        cell = Cell(**found.pop("cell"))
        rows[cell] = Row(price, load_averages=(before, after), **found)
    return rows


def add_row(path: Path, cell: Cell, row: Row) -> None:
    """Write one more."""
    path.parent.mkdir(parents=True, exist_ok=True)
    json_lines.append(path, {"cell": asdict(cell), **asdict(row)})
