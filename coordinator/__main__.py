"""`lipt-coordinator`, and `python -m lipt.coordinator`: signals first, as imports take seconds."""

from __future__ import annotations

from lipt.common.process import end_at_signals


def main() -> None:
    end_at_signals("lipt-coordinator")
    from lipt.coordinator.cli import main as run

    run()


if __name__ == "__main__":
    main()
