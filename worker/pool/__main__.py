"""`lipt-worker-pool` and `python -m lipt.worker.pool`: signals first, as imports take seconds."""

from __future__ import annotations

from lipt.common.process import end_at_signals


def main() -> None:
    end_at_signals("lipt-worker-pool")
    from lipt.worker.pool.up import main as run

    run()


if __name__ == "__main__":
    main()
