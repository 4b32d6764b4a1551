from __future__ import annotations

import io

from rich.table import Table

from lipt.trainer.cli.display.screen import Screen, styled, table_of

HOSTILE = "w[red]\n9  fake  row\x1b[2J\x9b2J\u202e:smile:"
SHOWN = r"w[red]\n9  fake  row\x1b[2J\x9b2J\u202e:smile:"


def screen() -> tuple[Screen, io.StringIO]:
    written = io.StringIO()
    return Screen(file=written, width=200, color_system=None), written


def test_a_string_is_shown_as_it_is_in_whatever_it_stands() -> None:
    console, written = screen()
    table = Table(box=None)
    table.add_column("name")
    table.add_row(HOSTILE)
    console.print(HOSTILE, table, styled(HOSTILE, "bold"), table_of(["x"], [("red", [HOSTILE])]))
    lines = [line.strip() for line in written.getvalue().splitlines()]
    assert lines == [SHOWN, "name", SHOWN, SHOWN, "x", SHOWN]
