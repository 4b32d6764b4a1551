"""The loop: views come, keys are pressed, the coordinator goes away; played, without a terminal."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator

import pytest

from lipt.common.errors import PermissionDeniedError, UnreachableError
from lipt.trainer.cli.display.screen import Screen
from lipt.trainer.cli.display.top.keys import Keys
from lipt.trainer.cli.display.top.watching import Pump, first_scene, watch
from lipt.trainer.views import ServiceView
from tests.trainer.made_up import made_up_run, made_up_service


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
