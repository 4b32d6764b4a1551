"""`python -m lipt.worker` is `lipt-worker`."""

from lipt.worker.cli import main

if __name__ == "__main__":
    main()
