"""Results of the bench: a line of JSON per cell, on disk as soon as it is done."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

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
        found: dict[Cell, dict[str, Any]] = {}
        for path in sorted(self._folder.glob("*.jsonl")):
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    row = json.loads(line)
                except json.JSONDecodeError:
                    continue
                found[Cell(**{name: row.pop(name) for name in FIELDS})] = row
        return found

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
        line = json.dumps({**asdict(cell), **asdict(result)})
        path = self._folder / f"{cell.data}.jsonl"
        with path.open("a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0, os.SEEK_END)
            if file.tell():
                file.seek(file.tell() - 1)
                if file.read(1) != "\n":
                    file.write("\n")
            file.write(f"{line}\n")
            file.flush()
            os.fsync(file.fileno())
