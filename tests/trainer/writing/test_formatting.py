from __future__ import annotations

from lipt.trainer.writing.formatting import table_lines


def test_a_cell_cannot_begin_a_row_or_shift_a_column() -> None:
    lines = table_lines(("name", "id"), [("a\n9  fake", "1"), ("b\x1b[2J", "2")])
    assert lines == [
        "name        id",
        r"a\n9  fake  1",
        r"b\x1b[2J    2",
    ]
