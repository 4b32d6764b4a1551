"""Results: a line of JSON per cell, on disk as soon as it is done, and who is at which cell."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.reproduction.cells import FIELDS, Cell, name_of
from benchmarks.reproduction.training import Result


class Results:
    """A file of results. Several processes may write; a line cut in two by a kill is no result."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def read(self) -> dict[Cell, dict[str, Any]]:
        """What there is, by cell."""
        found: dict[Cell, dict[str, Any]] = {}
        if not self._path.exists():
            return found
        for line in self._path.read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue
            found[Cell(**{name: row.pop(name) for name in FIELDS})] = row
        return found

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
        line = json.dumps({**asdict(cell), **asdict(result), **facts})
        with self._path.open("a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0, os.SEEK_END)
            if file.tell():
                file.seek(file.tell() - 1)
                if file.read(1) != "\n":
                    file.write("\n")
            file.write(f"{line}\n")
            file.flush()
            os.fsync(file.fileno())


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
