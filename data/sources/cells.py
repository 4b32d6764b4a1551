"""Cells: a column's texts as numbers, dates or categories, and what is reported on each column.

A column is numeric if all of its cells are missing or written in one way:

    1.5, 2e3               a number
    1,5 and 1.234,5        a number with a decimal comma, if not every comma may group thousands
    2024-05-01 10:30:00    a date (ISO 8601), in seconds since 1970, UTC without an offset
    10:30, 10:30:15        a time of day, in seconds
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from enum import StrEnum

# Of missing cells, in any case and without the spaces around them.
MISSING = ("", "na", "n/a", "nan", "null", "none", "?")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DATE = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d+)?)?( ?(Z|[+-]\d\d:?\d\d))?)?")
_OFFSET = re.compile(r" (Z|[+-])")
_TIME = re.compile(r"\d\d:\d\d(:\d\d(\.\d+)?)?")
_WITH_COMMA = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+)(,\d+)?([eE][+-]?\d+)?")
_MAY_GROUP = re.compile(r"[+-]?\d{1,3}(,\d{3})*")
_OTHER_DATE = re.compile(r"\d{1,4}[./-]\d{1,2}[./-]\d{1,4}\b.*")

# Fewer rows may all differ by chance.
_FEWEST_IDS = 20
_MOST_CLASSES_NAMED = 5


def number_in(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


CATEGORIES = "categories"


class Notation(StrEnum):
    """How the cells of a numeric column are written."""

    WHOLE = "whole numbers"
    POINT = "numbers"
    COMMA = "numbers with a decimal comma"
    DATE = "dates, in seconds since 1970"
    TIME = "times of day, in seconds"


@dataclass(frozen=True)
class Decimals:
    """A table's decimal separator, "" where each column decides.

    `groups`: whether a comma before three digits may group thousands.
    """

    mark: str = ""
    groups: bool = True


def numbers_in(texts: Collection[str], decimals: Decimals) -> tuple[list[float], Notation] | None:
    """Texts, none of them missing, as numbers, and their notation; None if they are no numbers."""
    for notation in _notations(texts, decimals):
        with suppress(ValueError, OverflowError):
            return list(map(_NUMBERS[notation], texts)), notation
    return None


def first_unread(texts: Sequence[str], decimals: Decimals) -> int:
    """The place of the first text that the notation of those before it does not read."""
    places = range(len(texts))
    return bisect(places, 0, key=lambda place: numbers_in(texts[: place + 1], decimals) is None)


def _notations(texts: Collection[str], decimals: Decimals) -> list[Notation]:
    points = decimals.mark != ","
    commas = not points or (not decimals.mark and not _may_group(texts, decimals))
    possible = {Notation.POINT: points, Notation.COMMA: commas}
    return [notation for notation in _NUMBERS if possible.get(notation, True)]


def _may_group(texts: Collection[str], decimals: Decimals) -> bool:
    """Whether all commas may group thousands, as in 1,234."""
    commas = [text for text in texts if "," in text]
    return decimals.groups and bool(commas) and all(map(_MAY_GROUP.fullmatch, commas))


def _with_comma(text: str) -> float:
    return float(_matched(_WITH_COMMA, text).replace(".", "").replace(",", "."))


def _seconds_of_date(text: str) -> float:
    moment = datetime.fromisoformat(_OFFSET.sub(r"\1", _matched(_DATE, text)))
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH).total_seconds()


def _seconds_of_day(text: str) -> float:
    parsed = time.fromisoformat(_matched(_TIME, text))
    return parsed.hour * 3600 + parsed.minute * 60 + parsed.second + parsed.microsecond / 1e6


def _matched(pattern: re.Pattern[str], text: str) -> str:
    if not pattern.fullmatch(text):
        raise ValueError(text)
    return text


_NUMBERS: dict[Notation, Callable[[str], float]] = {
    Notation.POINT: float,
    Notation.COMMA: _with_comma,
    Notation.DATE: _seconds_of_date,
    Notation.TIME: _seconds_of_day,
}


@dataclass(frozen=True)
class ColumnReading:
    """How a column was read.

    Attributes:
        read_as: "numbers", "categories", "text", "label" and the like.
        num_missing: missing cells.
        num_different: different values of categories, labels or whole numbers; 0 if not counted.
        num_rows: all rows.
        bounds: of numbers; seconds of dates.
        unread: an example of cells that may be numbers or dates, in a notation that is not read.
        names: of classes.
    """

    name: str
    read_as: str
    num_rows: int = 0
    num_missing: int = 0
    num_different: int = 0
    bounds: tuple[float, float] | None = None
    unread: str = ""
    names: tuple[str, ...] = ()

    @property
    def is_numeric(self) -> bool:
        return self.read_as in set(Notation)

    @property
    def identifies(self) -> bool:
        """Whether every row has a value of its own, as ids have."""
        return self.num_rows == self.num_different >= _FEWEST_IDS and self.read_as != Notation.DATE

    def __str__(self) -> str:
        parts = [self.read_as]
        if self.bounds is not None:
            parts.append(" to ".join(_bound(bound, self.read_as) for bound in self.bounds))
        if self.num_different and self.bounds is None:
            parts.append(f"{self.num_different} different")
        if self.names:
            more = ", ..." if len(self.names) > _MOST_CLASSES_NAMED else ""
            parts[-1] += ": " + ", ".join(self.names[:_MOST_CLASSES_NAMED]) + more
        if self.num_missing:
            parts.append(f"{self.num_missing} missing")
        if self.unread:
            parts.append(_remedy(self.unread))
        elif self.identifies:
            parts.append(f"a different one in every row, like an id: drop={self.name} ignores it")
        return f"{self.name or 'the tensor'}: {', '.join(parts)}"


def _bound(bound: float, read_as: str) -> str:
    if read_as != Notation.DATE:
        return f"{bound:.6g}"
    try:
        return str((_EPOCH + timedelta(seconds=bound)).replace(tzinfo=None)).removesuffix(
            " 00:00:00"
        )
    except OverflowError:
        return f"{bound:.6g}"


def _remedy(example: str) -> str:
    if _OTHER_DATE.fullmatch(example):
        return f"no numbers, as {example!r} is no date like 2024-12-31"
    return f"no numbers, as {example!r} may group thousands: decimal=%2C reads a decimal comma"


def unread_in(texts: Collection[str], decimals: Decimals) -> str:
    """An example of texts that look like dates or numbers and were not read as such, or ""."""
    if texts and all(map(_OTHER_DATE.fullmatch, texts)):
        return next(iter(texts))
    grouped = all(map(_WITH_COMMA.fullmatch, texts)) and _may_group(texts, decimals)
    return next((text for text in texts if grouped and "," in text), "")
