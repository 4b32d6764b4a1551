"""`lipt-worker`, `python -m lipt.worker`, and `lipt-worker-pool`."""

from __future__ import annotations

from lipt.common.process import run_program


def main() -> None:
    run_program("lipt-worker", "lipt.worker.cli", status_variable="LIPT_STOPPED_STATUS")


def pool() -> None:
    run_program("lipt-worker-pool", "lipt.worker.pool.up")


if __name__ == "__main__":
    main()
