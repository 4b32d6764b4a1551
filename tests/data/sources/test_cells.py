import math
from typing import Any

import pytest

from lipt.common.errors import DataError
from lipt.data.sources.cells import ColumnReading, Decimals, Notation, first_unread, unread_in
from lipt.data.sources.frames import FrameTable
from lipt.data.sources.tables.reading import read_numbers
from lipt.data.sources.tables.table import column_of

AUTO = Decimals()
ID, COMMA = "like an id: drop=a ignores it", "decimal=%2C reads a decimal comma"


@pytest.mark.parametrize(
    ("cells", "decimals", "values", "notation"),
    [
        (["1", " 2e1 ", "NA"], AUTO, [1, 20, math.nan], Notation.POINT),
        (["1.5", ""], AUTO, [1.5, math.nan], Notation.POINT),
        (["1_000", "+2"], AUTO, [1000, 2], Notation.POINT),
        ([1, 2.5, None], AUTO, [1, 2.5, math.nan], Notation.POINT),
        ([1, "2.5", None], AUTO, [1, 2.5, math.nan], Notation.POINT),
        ([2**70, 1], AUTO, [2.0**70, 1], Notation.POINT),
        (["1,5", "2", "1.234,5"], AUTO, [1.5, 2, 1234.5], Notation.COMMA),
        (["-1,5e2", "?"], AUTO, [-150, math.nan], Notation.COMMA),
        # A comma before three digits may group thousands, but not where cells end with `;`.
        (["1,234", "2,500"], Decimals(groups=False), [1.234, 2.5], Notation.COMMA),
        (["1,234", "7"], Decimals(","), [1.234, 7], Notation.COMMA),
        ([1.5, 2], Decimals(","), [1.5, 2], Notation.POINT),
        (["1970-01-02", "NaT"], AUTO, None, None),
        (["1970-01-02", ""], AUTO, [86_400, math.nan], Notation.DATE),
        (["1970-01-01 00:01", "1970-01-01T01:00:00+01:00"], AUTO, [60, 0], Notation.DATE),
        (["1970-01-01 00:00:00.5 +00:00", "1969-12-31"], AUTO, [0.5, -86_400], Notation.DATE),
        (["00:01:30", "01:00"], AUTO, [90, 3600], Notation.TIME),
        (["", None], AUTO, None, None),
        (["1,234", "2,500"], AUTO, None, None),
        (["1.5", "1,5"], AUTO, None, None),
        (["1,5", "2"], Decimals("."), None, None),
        (["1.5", "2"], Decimals(","), None, None),
        (["2024-02-30"], AUTO, None, None),
        (["2024-01-01", "soon"], AUTO, None, None),
        (["2024-01-01", "7"], AUTO, None, None),
        (["25:00"], AUTO, None, None),
        (["01/02/2024"], AUTO, None, None),
    ],
)
def test_cells_of_one_notation_are_numbers_and_others_are_not(
    cells: Any, decimals: Decimals, values: list[float] | None, notation: Notation | None
) -> None:
    table = FrameTable("data", [("a", cells)])
    table.decimals = decimals
    found = read_numbers(table, "a", table.read(["a"])["a"])
    if values is None:
        assert found is None
        return
    assert found is not None
    assert found.values_N.tolist() == pytest.approx(values, nan_ok=True)
    assert found.notation is notation


@pytest.mark.parametrize(
    ("texts", "place"), [(["1", "low"], 1), (["1.5", "1,5"], 1), (["2024-01-01", "7"], 1), ([], 0)]
)
def test_the_first_text_that_ends_a_notation_is_found(texts: list[str], place: int) -> None:
    assert first_unread(texts, AUTO) == place


def test_half_characters_are_refused() -> None:
    with pytest.raises(DataError, match=r"the column a holds .*half of a character at 1\. Write"):
        column_of(["x\ud800"], "t.jsonl", "a")


def reading(**more: Any) -> str:
    return str(ColumnReading("a", **{"read_as": "categories", "num_rows": 30, **more}))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (reading(num_different=3, num_missing=2), "a: categories, 3 different, 2 missing"),
        (
            reading(num_different=30),
            "a: categories, 30 different, a different one in every row, " + ID,
        ),
        (
            reading(read_as=Notation.DATE.value, bounds=(0.0, 90_000.0)),
            "a: dates, in seconds since 1970, 1970-01-01 to 1970-01-02 01:00:00",
        ),
        (reading(read_as="numbers", bounds=(0.5, 1e20)), "a: numbers, 0.5 to 1e+20"),
        (
            reading(read_as="label", num_different=6, names=tuple("abcdef")),
            "a: label, 6 different: a, b, c, d, e, ...",
        ),
        (
            reading(num_different=2, unread=unread_in(["1.2.2024"], AUTO)),
            "a: categories, 2 different, no numbers, as '1.2.2024' is no date like 2024-12-31",
        ),
        (
            reading(num_different=2, unread=unread_in(["7", "1,234"], AUTO)),
            "a: categories, 2 different, no numbers, as '1,234' may group thousands: " + COMMA,
        ),
    ],
)
def test_a_line_says_how_a_column_was_read(line: str, words: str) -> None:
    assert line == words
    assert unread_in(["x", "1,234"], AUTO) == ""
