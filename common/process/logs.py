"""Log: one line per event, to standard error, as text or JSON, the same for both services.

What a peer wrote cannot add a line or steer a terminal, whoever logs it: the formatter makes
every record printable.
"""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Literal

from lipt.common.process.json_logs import JsonFormatter
from lipt.common.text.printable import printable, printable_lines

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class PrintableFormatter(logging.Formatter):
    """A record on one line; the lines of a traceback below it are indented."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The record's own line."""
        return printable(super().formatMessage(record))

    def formatException(self, ei: ExcInfo) -> str:
        """The traceback, in which the error's text is a peer's sometimes."""
        return printable_lines(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:
        """Where it was logged."""
        return printable_lines(super().formatStack(stack_info))


def configure_logging(level: str, log_format: Literal["text", "json"] = "text") -> None:
    """Set up the process's log; called by a command line, never at import."""
    handler = logging.StreamHandler()
    if log_format == "json":
        handler.setFormatter(JsonFormatter())
        # Python would write these as they are.
        logging.captureWarnings(capture=True)
    else:
        handler.setFormatter(
            PrintableFormatter(
                "%(asctime)s %(levelname)-7s %(name)s: %(message)s", datefmt="%Y-%m-%dT%H:%M:%S%z"
            )
        )
    logging.basicConfig(level=level, handlers=[handler])
    # One line per call of every library is not what an operator reads.
    for noisy in ("asyncio", "grpc", "PIL"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLevelName(level)))
