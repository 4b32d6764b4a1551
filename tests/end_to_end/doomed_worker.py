"""Workers under a supervisor: `lipt-worker`, started again whenever its process ends.

A learner with the learning rate `DEADLY` ends it at once, without a word, as one does that asks for
more threads or memory than there are. Run as `python doomed_worker.py ARGUMENTS`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Any

from lipt.common.config.tasks import LearnerTask
from lipt.worker import cli
from lipt.worker.assignment import Worker
from lipt.worker.client import Assignment

DEADLY = 0.123
_PR_SET_PDEATHSIG = 1


def work() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    carry_out = Worker.carry_out

    def run(worker: Worker, assignment: Assignment, *rest: Any) -> None:
        task = assignment.task
        if isinstance(task, LearnerTask) and task.learners.learning_rate == DEADLY:
            os._exit(9)
        carry_out(worker, assignment, *rest)

    Worker.carry_out = run  # type: ignore[method-assign]
    cli.main()


def main() -> None:
    # Once for all of them: nothing is running yet.
    while True:
        child = os.fork()
        if not child:
            work()
        _, status = os.waitpid(child, 0)
        sys.stderr.write(f"a worker ended with {os.waitstatus_to_exitcode(status)}\n")


if __name__ == "__main__":
    main()
