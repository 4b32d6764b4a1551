"""Cells: a table's values, and how a column of them is read: numbers, dates, categories or texts.

A column is numeric if all of its cells are missing or written in one way:

    1.5, 2e3               a number
    1,5 and 1.234,5        a number with a decimal comma, if not every comma may group thousands
    2024-05-01 10:30:00    a date (ISO 8601), in seconds since 1970, UTC without an offset
    10:30, 10:30:15        a time of day, in seconds
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lipt.common.errors import DataError

# None for a null, NaN or absent value.
Cell = str | int | float | None

# Types of pandas, which need not be installed.
_NO_VALUES = frozenset({"NAType", "NaTType"})
_INTERVALS = frozenset({"Interval", "Period"})
# Matched in any case, ignoring spaces around them.
_MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})

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


def is_missing(cell: Cell) -> bool:
    """Whether a cell is empty, or one of NA, N/A, NaN, null, None and ?."""
    if cell is None:
        return True
    if isinstance(cell, str):
        return cell.strip().lower() in _MISSING
    return isinstance(cell, float) and math.isnan(cell)


def number_in(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def cell_of(value: Any, where: str, name: str) -> Cell:
    """A value of a file or of a program; dates become text, as they are in a CSV file."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, str):
        require_text(value, f"{where}: the column {name}")
        return value
    if value is None or isinstance(value, int | float):
        return value
    if type(value).__name__ in _NO_VALUES:
        return None
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, date | time) or type(value).__name__ in _INTERVALS:
        return str(value).removesuffix(" 00:00:00")
    raise DataError(
        f"{where}: the column {name} holds a {type(value).__name__}. Give a text or a number, or "
        f"leave the column out, as drop={name} does for a file."
    )


def require_text(text: str, what: str) -> None:
    """Refuse half characters (lone surrogates), which JSON can hold and no file can."""
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{what} holds {text!r:.60}, with half of a character at {error.start}. Write the file "
            "as UTF-8, without single surrogates such as \\ud800."
        ) from None


class Notation(StrEnum):
    """How the cells of a numeric column are written; whole numbers fit to points and commas."""

    WHOLE = "whole numbers"
    POINT = "numbers"
    COMMA = "numbers with a decimal comma"
    DATE = "dates, in seconds since 1970"
    TIME = "times of day, in seconds"


def common_notation(notations: set[Notation]) -> Notation | None:
    """The notation of a column from those of its chunks; None if they are written differently."""
    numbers = {Notation.POINT, Notation.COMMA}
    special = notations - {Notation.WHOLE}
    if len(special) > 1 or (special - numbers and len(notations) > 1):
        return None
    return next(iter(special), Notation.WHOLE)


@dataclass(frozen=True)
class Decimals:
    """A table's decimal separator, "" where each column decides.

    `groups`: whether a comma before three digits may group thousands.
    """

    mark: str = ""
    groups: bool = True


def read_cells(
    cells: Sequence[Cell], decimals: Decimals
) -> tuple[NDArray[np.float64], Notation | None] | None:
    """Cells as numbers, NaN where missing, and their notation, if any is known.

    None if they are no numbers.
    """
    plain = decimals.mark != ","
    with suppress(TypeError, ValueError, OverflowError):
        if plain:
            return np.array([float(cell) for cell in cells]), _with_points(cells)  # type: ignore[arg-type]
    known = [cell for cell in cells if not is_missing(cell)]
    texts = [cell.strip() for cell in known if isinstance(cell, str)]
    with suppress(ValueError, OverflowError):
        if plain or not texts:
            return _numbers(cells, float), _with_points(texts) if known else None
    for notation, pattern, number in _NOTATIONS:
        if len(texts) == len(known) and all(map(pattern.fullmatch, texts)):
            if notation is Notation.COMMA and not _reads_commas(texts, decimals):
                return None
            with suppress(ValueError, OverflowError):  # no such day
                return _numbers(cells, number), notation
    return None


def _numbers(cells: Sequence[Cell], number: Callable[[Any], float]) -> NDArray[np.float64]:
    return np.array([math.nan if is_missing(cell) else number(cell) for cell in cells])


def _with_points(cells: Sequence[Cell]) -> Notation:
    points = any(isinstance(cell, str) and "." in cell for cell in cells)
    return Notation.POINT if points else Notation.WHOLE


def _may_group(texts: Iterable[str], decimals: Decimals) -> bool:
    """Whether all commas may group thousands, as in 1,234."""
    commas = [text for text in texts if "," in text]
    return decimals.groups and bool(commas) and all(map(_MAY_GROUP.fullmatch, commas))


def _reads_commas(texts: Iterable[str], decimals: Decimals) -> bool:
    return decimals.mark == "," or (not decimals.mark and not _may_group(texts, decimals))


def _with_comma(text: str) -> float:
    return float(text.strip().replace(".", "").replace(",", "."))


def _seconds_of_date(text: str) -> float:
    moment = datetime.fromisoformat(_OFFSET.sub(r"\1", text.strip()))
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH).total_seconds()


def _seconds_of_day(text: str) -> float:
    found = time.fromisoformat(text.strip())
    return found.hour * 3600 + found.minute * 60 + found.second + found.microsecond / 1e6


_NOTATIONS: tuple[tuple[Notation, re.Pattern[str], Callable[[str], float]], ...] = (
    (Notation.COMMA, _WITH_COMMA, _with_comma),
    (Notation.DATE, _DATE, _seconds_of_date),
    (Notation.TIME, _TIME, _seconds_of_day),
)


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


def unread_in(cells: Sequence[Cell], decimals: Decimals) -> str:
    """An example of cells that look like dates or numbers and were not read as such, or ""."""
    texts = [str(cell).strip() for cell in cells if not is_missing(cell)]
    dates = bool(texts) and all(map(_OTHER_DATE.fullmatch, texts))
    grouped = all(map(_WITH_COMMA.fullmatch, texts)) and _may_group(texts, decimals)
    return (
        texts[0] if dates else next((text for text in texts if "," in text), "") if grouped else ""
    )
