from __future__ import annotations

import io

from rich.table import Table

from lipt.trainer.cli.display.follow import LiveDisplay
from lipt.trainer.cli.display.screen import Screen, stacked, styled
from tests.trainer.made_up import made_up_learner, made_up_run

HOSTILE = "w[red]\n9  fake  row\x1b[2J\x9b2J\u202e:smile:"
SHOWN = r"w[red]\n9  fake  row\x1b[2J\x9b2J\u202e:smile:"


def screen(*, terminal: bool = False) -> tuple[Screen, io.StringIO]:
    written = io.StringIO()
    return Screen(file=written, width=200, force_terminal=terminal, color_system=None), written


def test_a_string_is_shown_as_it_is_in_whatever_it_stands() -> None:
    console, written = screen()
    table = Table(box=None)
    table.add_column("name")
    table.add_row(HOSTILE)
    table.add_row(styled(HOSTILE, "bold"))
    table.add_row(stacked([styled("first"), styled(HOSTILE)]))
    console.print(HOSTILE, table)
    lines = [line.strip() for line in written.getvalue().splitlines()]
    assert lines == [SHOWN, "name", SHOWN, SHOWN, "first", SHOWN]


def test_a_live_table_has_a_row_per_learner_whatever_its_worker_is_called() -> None:
    console, written = screen(terminal=True)
    display = LiveDisplay(console)
    display.show(made_up_run(learners=(made_up_learner(0, worker=HOSTILE),)), now=0.0)
    display.close()
    drawn = written.getvalue()
    assert SHOWN in drawn
    assert "\x1b[2J" not in drawn
    assert "\x9b" not in drawn
