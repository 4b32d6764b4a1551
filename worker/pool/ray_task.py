"""Ray task: what Ray runs on a node, which is one `lipt-worker` from its start to its end.

Sent by its name and not as code, so that a node runs the lipt that is installed there.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence

from lipt.worker.pool.children import STOP_SECONDS, Child

# How soon a task notices that it is cancelled.
_SLICE_SECONDS = 0.2


def run_worker(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str]:
    """Run a worker to its end; it gives its learner back first where the task is cancelled.

    Args:
        arguments: of `lipt-worker`.
        environment: on top of the node's own.

    Returns:
        Its exit status, and what it said last.
    """
    # Ray cancels a task by an interrupt, which is ignored where a script started Ray in the
    # background.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    child = Child("lipt.worker", arguments, os.environ | environment, _log)
    try:
        while (status := child.wait(_SLICE_SECONDS)) is None:
            pass
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        child.terminate()
        status = child.end(STOP_SECONDS)
    finally:
        signal.signal(signal.SIGINT, before)
    return status, child.tail()


def _log(line: str) -> None:
    # Ray keeps what its processes print, for each task, where `ray logs` and its dashboard look.
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
