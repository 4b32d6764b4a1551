"""Keys: one at a time from a terminal, which has its ways back however the block ends."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager

_NAMED = {"\x1b[A": "up", "\x1b[B": "down", "\x1bOA": "up", "\x1bOB": "down", "\t": "tab"}
_MAX_BYTES = 64


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
    """Read keys as they are pressed, unseen; Ctrl-C stays what it is.

    Where standard input is no terminal, no key ever comes.
    """
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
