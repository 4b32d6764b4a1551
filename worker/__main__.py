"""`lipt-worker` and `python -m lipt.worker`."""

from __future__ import annotations

from lipt.common.process import run_program


def main() -> None:
    run_program("lipt-worker", "lipt.worker.cli", status_variable="LIPT_STOPPED_STATUS")


if __name__ == "__main__":
    main()
