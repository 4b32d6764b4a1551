from __future__ import annotations

import io

from lipt.trainer.cli.display.diagnosis import next_lines, print_diagnosis
from lipt.trainer.cli.display.screen import Screen
from tests.trainer.made_up_diagnosis import made_up_diagnosis, made_up_findings


def test_a_terminal_shows_a_table_as_wide_as_it_is() -> None:
    screen = io.StringIO()
    print_diagnosis(made_up_diagnosis(), Screen(file=screen, width=60, color_system=None))
    lines = screen.getvalue().splitlines()
    assert max(map(len, lines)) <= 60
    assert any(line.startswith("duplicates        3 surplus: 1 picture") for line in lines)
    assert "6    dog       cat         0.10" in lines


def test_names_of_classes_are_no_markup() -> None:
    findings = made_up_findings() | {"class_names": ["[red]cat[/red]", "dog"]}
    screen = io.StringIO()
    print_diagnosis(made_up_diagnosis(findings), Screen(file=screen, width=200))
    assert "[red]cat[/red] that look like dog" in screen.getvalue()


def test_what_was_done_is_not_what_to_do_next() -> None:
    done = next_lines(made_up_diagnosis(), pictures=True, exported=True)
    assert done == [
        "",
        "next:",
        "  lipt subset get --fraction 0.5 --out subset.npy   a subset, after a run",
    ]
