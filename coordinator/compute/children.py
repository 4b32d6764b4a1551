"""Compute children: forked from a server process that has loaded PyTorch.

The coordinator itself is not forked: it has threads. PyTorch is imported once for all children.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker

from lipt.common.process import STOP_SIGNALS

# They reach the whole process group; the parent decides when children stop.
IGNORED_SIGNALS = frozenset(STOP_SIGNALS)

# The kernel allows 107 bytes for a socket's name, and multiprocessing adds 32 to the folder's.
_LONGEST_FOLDER_BYTES = 107 - 32

_PRELOADED = [
    "lipt.coordinator.compute.jobs.pretraining",
    "lipt.coordinator.compute.jobs.selection",
    "lipt.coordinator.compute.context",
    "lipt.coordinator.compute.process",
    "lipt.core.stages.warm_up",
]


def start_server() -> None:
    """Start the server if none is running; it imports in the background."""
    with _signals_blocked(), _short_socket_names():
        forkserver.set_forkserver_preload(_PRELOADED)
        forkserver.ensure_running()


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block group signals: children inherit the mask, and unblock it once they ignore them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED_SIGNALS)
    try:
        resource_tracker.ensure_running()
        # Python unblocks some after starting this helper.
        signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED_SIGNALS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _short_socket_names() -> Iterator[None]:
    """Put the server's socket in /tmp if TMPDIR, as set by batch systems, is too long."""
    before = tempfile.tempdir
    if len(os.fsencode(tempfile.gettempdir())) > _LONGEST_FOLDER_BYTES:
        tempfile.tempdir = "/tmp"  # noqa: S108 - a private folder is made there
    try:
        yield
    finally:
        tempfile.tempdir = before
