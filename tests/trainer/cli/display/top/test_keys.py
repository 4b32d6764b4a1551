"""Keys from a real pseudo-terminal, and the terminal as it was afterwards."""

from __future__ import annotations

import os
import pty
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from lipt.trainer.cli.display.top.keys import Keys, reading_keys, split_keys


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The typist's end of a terminal that is standard input."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "r") as standard_input:
        monkeypatch.setattr(sys, "stdin", standard_input)
        yield ours
    os.close(ours)


@pytest.mark.parametrize(
    ("typed", "keys"),
    [
        ("jk", ["j", "k"]),
        ("\x1b[A\x1b[B\t", ["up", "down", "tab"]),
        ("\x1bOA", ["up"]),
        ("q\x1b[5~", ["q"]),
        ("\x1b", []),
        ("", []),
    ],
)
def test_typed_bytes_are_split_into_keys(typed: str, keys: list[str]) -> None:
    assert split_keys(typed) == keys


def test_keys_come_without_a_newline_and_are_not_shown(terminal: int) -> None:
    with reading_keys() as keys:
        os.write(terminal, b"j\x1b[A")
        assert keys.wait(60.0) == ["j", "up"]
        assert keys.wait(0.0) == []
        assert not termios.tcgetattr(sys.stdin.fileno())[3] & termios.ECHO


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, RuntimeError])
def test_terminal_is_given_back_whatever_happens(terminal: int, error: type[BaseException]) -> None:
    before = termios.tcgetattr(sys.stdin.fileno())
    with pytest.raises(error), reading_keys():
        raise error
    assert termios.tcgetattr(sys.stdin.fileno()) == before


def test_no_key_comes_where_standard_input_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Path(os.devnull).open(encoding="utf-8") as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        with reading_keys() as keys:
            assert keys.wait(0.0) == []


def test_a_terminal_that_has_gone_is_read_no_more() -> None:
    reading, writing = os.pipe()
    os.close(writing)
    keys = Keys(reading)
    assert [keys.wait(0.0), keys.wait(0.0)] == [[], []]
    os.close(reading)
