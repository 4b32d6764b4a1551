"""A coordinator that leaves the first range of every shared pass to a worker.

Run: python -m tests.end_to_end.patient_coordinator ARGUMENTS OF lipt-coordinator
A short pass is otherwise over before a worker of a busy machine has sent anything.
"""

from time import monotonic, sleep

from lipt.coordinator import cli
from lipt.coordinator.compute.scan import _SharedPass

PATIENT = ("-m", "tests.end_to_end.patient_coordinator")
# Without a worker the pass goes on by itself, and the test says that there was none.
_PATIENCE_SECONDS = 100.0


def leave_a_range() -> None:
    compute = _SharedPass._compute

    def patient(shared: _SharedPass, index: int) -> None:
        deadline = monotonic() + _PATIENCE_SECONDS
        while not shared._folder.files() and monotonic() < deadline:
            sleep(0.02)
        compute(shared, index)

    _SharedPass._compute = patient  # type: ignore[method-assign]


if __name__ == "__main__":
    cli.main()
elif __name__ == "__mp_main__":  # the compute process
    leave_a_range()
