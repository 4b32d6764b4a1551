"""Run reader: reads single runs where they are asked for, in a moment and behind no write."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from lipt.common.errors import StateError
from lipt.coordinator.state.contents import read_runs, require_readable
from lipt.coordinator.state.records import RunRecord


class RunReader:
    """A connection that only reads; belongs to the thread that opened it."""

    def __init__(self, path: Path) -> None:
        """Read a database.

        Raises:
            sqlite3.Error: it cannot be opened.
        """
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA query_only = ON")

    def read(self, run_id: str) -> RunRecord | None:
        """A run with its learners as it is on disk; None where there is none.

        Raises:
            StateError: it cannot be read.
        """
        problems: list[str] = []
        try:
            # One view of the run and its learners.
            self._connection.execute("BEGIN")
            try:
                runs = read_runs(self._connection, problems, ids=(run_id,))
            finally:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise StateError(
                f"run {run_id} could not be read: {error}. Nothing was lost by that; see "
                "lipt state check, and restore a backup where it finds the database damaged."
            ) from error
        require_readable(problems)
        return runs[0] if runs else None

    def close(self) -> None:
        """Give the file up."""
        self._connection.close()
