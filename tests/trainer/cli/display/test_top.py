"""Keys from a real pseudo-terminal; the loop is played, without a terminal."""

from __future__ import annotations

import io
import os
import pty
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lipt.common.errors import PermissionDeniedError, UnreachableError
from lipt.trainer.cli.display.screen import Screen
from lipt.trainer.cli.display.top import Keys, Pump, first_scene, reading_keys, split_keys, watch
from lipt.trainer.views import ServiceView
from tests.trainer.made_up import made_up_run, made_up_service


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


class PlayedKeys(Keys):
    """Presses a key each time that what is drawn shows what it waits for."""

    def __init__(self, stream: io.StringIO, *steps: tuple[str, str]) -> None:
        super().__init__(-1)
        self._stream, self._steps = stream, list(steps)

    def wait(self, seconds: float) -> list[str]:
        if self._steps and self._steps[0][0] in self._stream.getvalue():
            self._stream.truncate(0)
            return [self._steps.pop(0)[1]]
        return []


def play(
    views: Callable[[Callable[[str], object]], Iterator[ServiceView]],
    *steps: tuple[str, str],
    cancel: Callable[[str], object] = lambda _: None,
) -> None:
    stream = io.StringIO()
    console = Screen(file=stream, width=100, height=30, force_terminal=True)
    seconds = iter(range(10**6))
    watch(
        first_scene("head:1"),
        Pump(views),
        PlayedKeys(stream, *steps),
        cancel=cancel,
        clock=lambda: float(next(seconds)),
        console=console,
    )


def staying(*views: ServiceView) -> Callable[[Callable[[str], object]], Iterator[ServiceView]]:
    """Views that come at once, and a stream that stays open."""

    def stream(_on_pause: Callable[[str], object]) -> Iterator[ServiceView]:
        yield from views
        threading.Event().wait()

    return stream


def test_views_are_drawn_until_the_person_quits() -> None:
    view = made_up_service(runs=(made_up_run(name="first"),), num_runs=1)
    play(staying(view), ("first", "tab"), ("There is none", "q"))


def test_a_run_is_cancelled_when_the_person_says_so() -> None:
    cancelled: list[str] = []
    view = made_up_service(runs=(made_up_run(run_id="r-1", name="first"),), num_runs=1)
    steps = (("first", "c"), ("Cancel run first?", "y"), ("first", "q"))
    play(staying(view), *steps, cancel=cancelled.append)
    assert cancelled == ["r-1"]


def test_a_refusal_is_shown_and_does_not_end_the_watch() -> None:
    def refuse(_run_id: str) -> None:
        raise PermissionDeniedError("box may not call CancelRun.")

    view = made_up_service(runs=(made_up_run(name="first"),), num_runs=1)
    steps = (("first", "c"), ("Cancel run", "y"), ("may not call CancelRun", "q"))
    play(staying(view), *steps, cancel=refuse)


def test_what_is_known_stays_while_the_coordinator_is_away() -> None:
    come_back = threading.Event()

    def views(on_pause: Callable[[str], object]) -> Iterator[ServiceView]:
        yield made_up_service(runs=(made_up_run(name="before"),), num_runs=1)
        on_pause("nobody answers; asking again in 3.0 s")
        come_back.wait()
        yield made_up_service(runs=(made_up_run(name="after"),), num_runs=1)
        threading.Event().wait()

    class Keys(PlayedKeys):
        def wait(self, seconds: float) -> list[str]:
            text = self._stream.getvalue()
            if "nobody answers" in text and "before" in text:
                come_back.set()
            return super().wait(seconds)

    stream = io.StringIO()
    console = Screen(file=stream, width=100, height=30, force_terminal=True)
    keys = Keys(stream, ("after", "q"))
    pump = Pump(views)
    watch(first_scene("h:1"), pump, keys, cancel=print, clock=lambda: 0.0, console=console)
    assert pump.notice == ""


def test_what_ends_the_views_ends_the_watch() -> None:
    def views(_on_pause: Callable[[str], object]) -> Iterator[ServiceView]:
        yield made_up_service()
        raise UnreachableError("the coordinator at head:1 does not answer.")

    with pytest.raises(UnreachableError, match="head:1"):
        play(views)
