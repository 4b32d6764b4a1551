"""Children of the coordinator that compute: forked from a server process that has torch loaded.

The coordinator itself is never forked: it has threads and an event loop. PyTorch is imported once
for all children, while the coordinator imports its own.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any

# Ctrl-C and a service manager's SIGTERM reach the whole process group: the parent decides.
IGNORED_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM})

# The kernel takes 107 bytes of a socket's name, and multiprocessing appends 32 to the folder's.
_LONGEST_FOLDER_BYTES = 107 - 32

_PRELOADED = [
    "lipt.coordinator.compute.jobs.pretraining",
    "lipt.coordinator.compute.jobs.selecting",
    "lipt.coordinator.compute.light",
    "lipt.coordinator.compute.process",
    "lipt.core.stages.warm_up",
]


def start_server() -> None:
    """Start the server where none is running; it imports while the caller goes on."""
    with _signals_blocked(), _short_socket_names():
        forkserver.set_forkserver_preload(_PRELOADED)
        forkserver.ensure_running()


def start_child(target: Callable[..., None], args: tuple[Any, ...], name: str) -> BaseProcess:
    """Fork a child that calls `target` and ends with this process at the latest."""
    start_server()
    context = multiprocessing.get_context("forkserver")
    child = context.Process(target=target, args=args, name=name, daemon=True)
    child.start()
    return child


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block signals to the process group for the server and, until they ignore them, children."""
    # Python unblocks SIGINT and SIGTERM after it has started this helper.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _short_socket_names() -> Iterator[None]:
    """Have the server's socket in /tmp where TMPDIR, as batch systems set it, is too long."""
    before = tempfile.tempdir
    if len(os.fsencode(tempfile.gettempdir())) > _LONGEST_FOLDER_BYTES:
        tempfile.tempdir = "/tmp"  # noqa: S108 - a private folder is made there
    try:
        yield
    finally:
        tempfile.tempdir = before
