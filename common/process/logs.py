"""Log: one line per event, to standard error, the same for both services."""

from __future__ import annotations

import logging


def configure_logging(level: str) -> None:
    """Set up the process's log; called by a command line, never at import."""
    logging.basicConfig(
        level=level,
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S%z",
    )
    # One line per call of every library is not what an operator reads.
    for noisy in ("asyncio", "grpc", "PIL"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLevelName(level)))
