"""`lipt-coordinator` and `python -m lipt.coordinator`."""

from __future__ import annotations

from lipt.common.process import run_program


def main() -> None:
    run_program("lipt-coordinator", "lipt.coordinator.cli")


if __name__ == "__main__":
    main()
