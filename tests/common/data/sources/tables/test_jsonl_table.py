from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lipt.common.data.sources.tables.files import JsonlTable
from lipt.common.errors import DataError

Write = Callable[[str], Path]


def test_columns_are_those_of_all_lines_and_what_a_line_lacks_is_missing(write: Write) -> None:
    table = JsonlTable(write('{"a": 1, "b": "x"}\n\n{"c": true, "a": null}\n'))
    assert table.columns == ("a", "b", "c")
    assert list(table.chunks(["a", "b", "c"])) == [[[1, None], ["x", None], [None, "true"]]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": 1}\n{"a": \n', "line 2 is not JSON"),
        ("[1]\n", "line 1 is a list. Write one object on each line"),
    ],
)
def test_lines_that_are_no_objects_are_named(write: Write, text: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        JsonlTable(write(text))


def test_values_that_are_no_cells_are_refused_where_they_are_asked_for(write: Write) -> None:
    table = JsonlTable(write('{"a": 1, "b": [1]}\n'))
    assert list(table.chunks(["a"])) == [[[1]]]
    with pytest.raises(DataError, match=r"object 1: the column b holds a list.*drop=b"):
        list(table.chunks(["b"]))
