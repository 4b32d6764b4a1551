"""Leaving: the end of a process whose background thread is not done.

Python ends such threads in the middle of what they do. Inside torch or gRPC that is the end of the
whole process, "terminate called without an active exception", whatever status it had.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from lipt.trainer.cli.display.waiting import BACKGROUND


@contextmanager
def leaving() -> Iterator[None]:
    """Let the block's exception end the process; at once where something goes on behind it."""
    try:
        yield
    except BaseException as error:
        if not any(thread.name == BACKGROUND for thread in threading.enumerate()):
            raise
        status = _status(error)
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):  # who read it has gone
                stream.flush()
        os._exit(status)


def _status(error: BaseException) -> int:
    """The exit status that Python would have, after what it would print."""
    if not isinstance(error, SystemExit):
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code
    print(error.code, file=sys.stderr)  # noqa: T201 - as Python does
    return 1
