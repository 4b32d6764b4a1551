"""`lipt-worker` and `python -m lipt.worker`: signals first, as imports take seconds."""

from __future__ import annotations

from lipt.common.process import end_at_signals


def main() -> None:
    end_at_signals("lipt-worker", status_variable="LIPT_STOPPED_STATUS")
    from lipt.worker.cli import main as run

    run()


if __name__ == "__main__":
    main()
