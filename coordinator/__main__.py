"""`python -m lipt.coordinator` is `lipt-coordinator`."""

from lipt.coordinator.cli import main

if __name__ == "__main__":
    main()
