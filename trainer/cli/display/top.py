"""`lipt top` on a terminal: what a person looks at, the keys, and the loop that draws."""

from __future__ import annotations

import os
import queue
import select
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from rich.live import Live

from lipt.common.errors import LiptError
from lipt.trainer.cli.display.output import BACKGROUND
from lipt.trainer.cli.display.progress import Pace
from lipt.trainer.cli.display.screen import Screen
from lipt.trainer.cli.display.top_frame import Cancelling, Choice, Scene, after_key, render
from lipt.trainer.views import ServiceView

_NAMED = {"\x1b[A": "up", "\x1b[B": "down", "\x1bOA": "up", "\x1bOB": "down", "\t": "tab"}
_MAX_BYTES = 64
_TICK_SECONDS = 0.1


class Keys:
    """What is typed; waits for it no longer than it is told to."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._ended = False

    def wait(self, seconds: float) -> list[str]:
        """The keys that were pressed, oldest first; empty where none was for so long."""
        if self._ended:  # its terminal has gone; there is nothing to wait for
            select.select([], [], [], seconds)
            return []
        readable, _, _ = select.select([self._descriptor], [], [], seconds)
        if not readable:
            return []
        typed = os.read(self._descriptor, _MAX_BYTES)
        self._ended = not typed
        return split_keys(typed.decode(errors="replace"))


def split_keys(typed: str) -> list[str]:
    """Characters, and sequences of those keys that have a name here; others are left out."""
    keys: list[str] = []
    while typed:
        known = next((name for name in _NAMED if typed.startswith(name)), None)
        if known is not None:
            keys.append(_NAMED[known])
            typed = typed[len(known) :]
        elif typed[0] == "\x1b":  # some other key's: nobody means its characters
            break
        else:
            keys.append(typed[0])
            typed = typed[1:]
    return keys


@contextmanager
def reading_keys() -> Iterator[Keys]:
    """Read keys as they are pressed, unseen; Ctrl-C stays what it is."""
    if not sys.stdin.isatty():
        reading, writing = os.pipe()
        try:
            yield Keys(reading)
        finally:
            os.close(reading)
            os.close(writing)
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield Keys(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


class Paces:
    """The pace of every run that is under way."""

    def __init__(self) -> None:
        self._paces: dict[str, Pace] = {}

    def observe(self, view: ServiceView, now: float) -> None:
        """Note how far the runs are, and forget those that have ended."""
        under_way = [run for run in view.runs if not run.ended]
        self._paces = {run.run_id: self._paces.get(run.run_id, Pace()) for run in under_way}
        for run in under_way:
            self._paces[run.run_id].observe(run, now)

    def words(self, now: float) -> dict[str, str]:
        """What is left of each run's stage, by its id."""
        return {
            run_id: pace.words(now).removesuffix(" left") for run_id, pace in self._paces.items()
        }


class Pump:
    """Views from a thread of its own, so that a key never waits for the network."""

    def __init__(self, views: Callable[[Callable[[str], object]], Iterable[ServiceView]]) -> None:
        self.notice = ""
        self._arrived: queue.SimpleQueue[ServiceView | str | Exception] = queue.SimpleQueue()
        self._views = views
        # A daemon: quitting must not wait for a call that hangs.
        threading.Thread(target=self._run, name=BACKGROUND, daemon=True).start()

    def newest(self) -> ServiceView | None:
        """The newest view since it was last asked for."""
        newest = None
        while not self._arrived.empty():
            item = self._arrived.get()
            if isinstance(item, Exception):
                raise item
            if isinstance(item, str):
                self.notice = item
            else:
                newest, self.notice = item, ""
        return newest

    def _run(self) -> None:
        try:
            for view in self._views(self._arrived.put):
                self._arrived.put(view)
        except Exception as error:  # noqa: BLE001 - raised again in the main thread
            self._arrived.put(error)


def watch(
    scene: Scene,
    pump: Pump,
    keys: Keys,
    *,
    cancel: Callable[[str], object],
    clock: Callable[[], float],
    console: Screen | None = None,
) -> None:
    """Draw the service until the person quits."""
    console = console or Screen()
    paces, done = Paces(), ""
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while not scene.choice.quits:
            now = clock()
            if (view := pump.newest()) is not None:
                scene = replace(scene, view=view)
                paces.observe(view, now)
            scene = replace(scene, left=paces.words(now), notice=pump.notice or done)
            size = console.size
            live.update(render(scene, width=size.width, height=size.height), refresh=True)
            for key in keys.wait(_TICK_SECONDS):
                choice, wanted = after_key(scene.choice, key, scene.view)
                scene = replace(scene, choice=choice)
                done = _cancelled(wanted, cancel) if wanted is not None else done


def _cancelled(wanted: Cancelling, cancel: Callable[[str], object]) -> str:
    try:
        cancel(wanted.run_id)
    except LiptError as error:
        return str(error)
    return ""


def first_scene(address: str) -> Scene:
    """Before anything was heard."""
    return Scene(address=address, view=None, choice=Choice(), left={})
