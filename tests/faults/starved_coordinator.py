"""A coordinator whose compute process has no memory for some strategies.

Run: python -m tests.faults.starved_coordinator ARGUMENTS OF lipt-coordinator
`facility_location` is killed as the system kills for lack of memory, `craig` asks for more than
there is. Each attempt writes a line to $ATTEMPTS.
"""

import os
import signal
from pathlib import Path

import numpy as np

from lipt.coordinator import cli
from lipt.coordinator.compute.context import Context
from lipt.coordinator.compute.jobs.selection import SelectSubset, StoredSubset


def starve() -> None:
    run = SelectSubset.run

    def starved(job: SelectSubset, context: Context) -> StoredSubset:
        strategy = job.request.strategy
        with Path(os.environ["ATTEMPTS"]).open("a") as file:
            file.write(f"{strategy}\n")
        if strategy == "facility_location":
            os.kill(os.getpid(), signal.SIGKILL)
        if strategy == "craig":
            np.ones(2**46)
        return run(job, context)

    setattr(SelectSubset, "run", starved)  # noqa: B010 - a class is patched


if __name__ == "__main__":
    cli.main()
elif __name__ == "__mp_main__":  # the compute process
    starve()
