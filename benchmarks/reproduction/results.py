"""Results: a line of JSON per cell, on disk as soon as it is done, and who is at which cell."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks import json_lines
from benchmarks.reproduction.cells import FIELDS, Cell, name_of
from benchmarks.reproduction.training import Result


class Results:
    """A file of results. Several processes may write; a line cut in two by a kill is no result."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def read(self) -> dict[Cell, dict[str, Any]]:
        """What there is, by cell."""
        rows = json_lines.read(self._path)
        return {Cell(**{name: row.pop(name) for name in FIELDS}): row for row in rows}

    def of_the_same_examples(self, cell: Cell, digest: str) -> dict[str, Any] | None:
        """What the same subset came to in the same training, if it was trained on."""
        if cell.every:
            return None
        for other, row in self.read().items():
            alike = replace(other, strategy="", pretraining="", run="") == replace(
                cell, strategy="", pretraining="", run=""
            )
            if alike and row["digest"] == digest and other.is_watched >= cell.is_watched:
                return row
        return None

    def add(self, cell: Cell, result: Result, facts: Mapping[str, object]) -> None:
        """Write one more, synced."""
        json_lines.append(self._path, {**asdict(cell), **asdict(result), **facts})


@contextmanager
def claimed(cell: Cell, folder: Path) -> Iterator[bool]:
    """Whether the cell is this process's; the kernel lets go of it with the process."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name_of(cell)).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
