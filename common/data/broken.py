"""Broken images: all of a set are found before any is complained of, and named in one refusal."""

from __future__ import annotations

from lipt.common.data.sources.encoded import EncodedRows
from lipt.common.data.sources.rows import Rows
from lipt.common.errors import DataError

_MOST_NAMED = 20


class BrokenImages:
    """What is wrong with the files of a set.

    Only files are gone on after: what is wrong with one row of a user's own function is wrong
    with all of them most likely.

    Args:
        rows: the set's.
        at_most: how many may be.
    """

    def __init__(self, rows: Rows, at_most: int = 0) -> None:
        self._rows = rows
        self._at_most = at_most
        self._first: DataError | None = None
        self._named: list[str] = []
        self._count = 0
        # Of more than there may be, nobody asks.
        self.ids: list[int] = []

    def note(self, row: int, error: DataError) -> None:
        """Keep that a row cannot be used.

        Raises:
            DataError: `error` itself, where the rows are no files.
        """
        if not isinstance(self._rows, EncodedRows):
            raise error
        self._first = self._first or error
        self._count += 1
        if self._count <= self._at_most:
            self.ids.append(row)
        if len(self._named) < _MOST_NAMED:
            self._named.append(f"image {row} ({self._rows.where(row)}): {error.__cause__ or error}")

    def require_few(self) -> None:
        """Refuse a set that has more than it may.

        Raises:
            DataError: names the first 20, and says how many there are.
        """
        if self._first is None or self._count <= self._at_most:
            return
        if self._count == 1:
            raise self._first
        listed = "\n".join(self.named)
        allowed = f", and at most {self._at_most} may be left out" if self._at_most else ""
        raise DataError(
            f"{self._count} of {len(self._rows)} images of {self._rows.source} cannot be used"
            f"{allowed}. Replace them, or remove them and open the data again:\n{listed}"
        )

    @property
    def named(self) -> list[str]:
        """The first 20 and what is wrong with them, and how many more there are."""
        more = self._count - len(self._named)
        return [*self._named, *([f"and {more} more: lipt check --data lists all"] if more else [])]
