"""Compute process, from inside: take a job, run it, send its result."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait

from lipt.common.errors import ComputeError, LiptError
from lipt.coordinator.compute.context import Context
from lipt.coordinator.compute.messages import Failed, Finished, Progressed, name_of
from lipt.coordinator.settings import CoordinatorSettings

# Ctrl-C and a service manager's SIGTERM reach the whole process group: the parent decides.
IGNORED_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM})


def serve(pipe: Connection, settings: CoordinatorSettings) -> None:
    """Run jobs until the parent closes the pipe or is gone."""
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    # The parent had them blocked meanwhile, which a child of this process must not inherit.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED_SIGNALS)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    context = Context(
        settings, report=lambda text, done, total: pipe.send(Progressed(text, done, total))
    )
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        pipe.send(_run(job, context))


def _run(job: object, context: Context) -> Finished | Failed:
    try:
        return Finished(job.run(context))  # type: ignore[attr-defined]
    except LiptError as error:
        return Failed(error)
    except Exception as error:  # noqa: BLE001 - the outermost frame of a job
        why = f"{name_of(job)} failed: {type(error).__name__}: {error}"
        return Failed(ComputeError(why), traceback.format_exc())


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
