"""`lipt-worker` in whose first task the machine fails as soon as it has a learner.

The others begin after that: a pipe at SLURM_STUB/dead tells them.
"""

import os
import signal
from pathlib import Path

from lipt.worker.__main__ import main


def _fail(*_: object) -> None:
    _pipe().write_text("dead")
    os.kill(os.getpid(), signal.SIGKILL)


def _pipe() -> Path:
    return Path(os.environ["SLURM_STUB"], "dead")


if __name__ == "__main__":
    if os.environ["SLURM_PROCID"] == "0":
        from lipt.worker.assignment import Worker

        Worker.carry_out = _fail  # type: ignore[method-assign, assignment]
    else:
        _pipe().read_text()
    main()
