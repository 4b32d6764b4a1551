from __future__ import annotations

from lipt.trainer.writing.formatting import format_bytes, table_lines


def test_sizes_have_decimal_units() -> None:
    sizes = (0, 999, 1000, 1_234_567, 5_000_000_000, 7_000_000_000_000)
    assert [format_bytes(size) for size in sizes] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "1.2 MB",
        "5.0 GB",
        "7000.0 GB",
    ]


def test_a_cell_cannot_begin_a_row_or_shift_a_column() -> None:
    lines = table_lines(("name", "id"), [("a\n9  fake", "1"), ("b\x1b[2J", "2")])
    assert lines == [
        "name        id",
        r"a\n9  fake  1",
        r"b\x1b[2J    2",
    ]
