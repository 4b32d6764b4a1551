"""Child processes of the compute queue: started, listened to, ended."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from lipt.common.errors import ComputeError, LiptError
from lipt.common.observability.exporting import exporting
from lipt.common.observability.logs import configure_logging
from lipt.common.process.memory import go_first_without_memory, is_out_of_memory, limit_memory
from lipt.coordinator.compute.context import Context, Report
from lipt.coordinator.compute.memory import out_of_memory
from lipt.coordinator.compute.messages import (
    DroppedError,
    Failed,
    Finished,
    Stop,
    TooDearError,
    Unfinished,
    name_of,
)
from lipt.coordinator.compute.progress import Progressed

# Children of the coordinator that compute: forked from a server process that has torch loaded.
#
# The coordinator itself is never forked: it has threads and an event loop. The server is a fresh
# interpreter that imports what jobs need, has no threads, and forks when it is asked to. So PyTorch
# is imported once for all children, while the coordinator imports its own.

# Ctrl-C and a service manager's SIGTERM reach the whole process group: the parent decides.
IGNORED_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM})

# The kernel takes 107 bytes of a socket's name, and multiprocessing appends 32 to the folder's.
_LONGEST_FOLDER_BYTES = 107 - 32

_PRELOADED = [
    "lipt.coordinator.compute.children",
    "lipt.coordinator.compute.cheap",
    "lipt.coordinator.compute.jobs.diagnosing",
    "lipt.coordinator.compute.jobs.pretraining",
    "lipt.coordinator.compute.jobs.selecting",
    "lipt.core.stages.warm_up",
]


def start_server() -> None:
    """Start the server where none is running; it imports while the caller goes on.

    It takes this process's environment and arguments as they are now.
    """
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


# Compute process, from inside: take a job, run it, send its result.

# Makes what jobs are given; travels to the child by pickle, before the first job.
OpenContext = Callable[[Report], Context]


def serve(pipe: Connection, memory_bytes: int) -> None:
    """Run jobs until the parent closes the pipe or is gone; what opens a context comes first.

    Args:
        pipe: jobs come in, and answers go out.
        memory_bytes: what this process may take.
    """
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    # Blocked since before the fork, which a child of this process must not inherit.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED_SIGNALS)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    go_first_without_memory()
    with suppress(EOFError):
        open_context: OpenContext = pipe.recv()
        context = open_context(_reporting(pipe))
        configure_logging(context.settings.log_level, context.settings.log_format)
        # A device that there is not is a job's to say.
        with suppress(LiptError):
            # The driver of a CUDA device maps far more than is used.
            if context.device.type == "cpu":
                limit_memory(memory_bytes)
        with exporting("lipt-compute"):
            while True:
                message = pipe.recv()
                # One that came too late for its job is of no meaning any more.
                if not isinstance(message, Stop):
                    pipe.send(carry_out(message, context, memory_bytes))


def _reporting(pipe: Connection) -> Report:
    def report(progressed: Progressed) -> None:
        if pipe.poll():  # nothing else is sent while a job is under way
            pipe.recv()
            raise DroppedError
        pipe.send(progressed)

    return report


def carry_out(job: object, context: Context, memory_bytes: int) -> Finished | Failed | Unfinished:
    """Run a job; what comes of it is an answer in any case.

    Args:
        job: has a `run` method.
        context: what it is given.
        memory_bytes: what it may take, for the message where that was not enough.
    """
    try:
        return Finished(job.run(context))  # type: ignore[attr-defined]
    except (DroppedError, TooDearError) as ended:
        return Unfinished(type(ended)())
    except Exception as error:  # noqa: BLE001 - the outermost frame of a job
        if is_out_of_memory(error):
            why = f"{type(error).__name__}: {error}".strip(": ")
            refusal = out_of_memory(name_of(job), why, limit_bytes=memory_bytes)
            return Failed(refusal, traceback.format_exc())
        if isinstance(error, LiptError):
            return Failed(error)
        why = f"{name_of(job)} failed: {type(error).__name__}: {error}"
        return Failed(ComputeError(why), traceback.format_exc())


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
