"""Results of the bench: a line of JSON per cell, on disk as soon as it is done."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks import json_lines
from benchmarks.value.cells import FIELDS, Cell
from benchmarks.value.training import Result


class Results:
    """A folder with a file of results per data set.

    Several processes may write; a line that a kill has cut in two does not count.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def read(self) -> dict[Cell, dict[str, Any]]:
        """What there is, by cell."""
        rows = (
            row for path in sorted(self._folder.glob("*.jsonl")) for row in json_lines.read(path)
        )
        return {Cell(**{name: row.pop(name) for name in FIELDS}): row for row in rows}

    def with_digest(self, cell: Cell, digest: str) -> Result | None:
        """What the same examples came to in the same training, if they were trained on."""
        if not digest:
            return None
        alike = replace(cell, strategy="", proxy="", fraction=0.0)
        for other, row in self.read().items():
            same = replace(other, strategy="", proxy="", fraction=0.0) == alike
            if same and row["digest"] == digest:
                return Result(**row)
        return None

    def add(self, cell: Cell, result: Result) -> None:
        """Write one more, synced."""
        path = self._folder / f"{cell.data}.jsonl"
        json_lines.append(path, {**asdict(cell), **asdict(result)})
