"""JSON log: one object a line, for what collects logs.

    time        RFC 3339, UTC, to the microsecond
    level       DEBUG, INFO, WARNING or ERROR
    logger      the part of the program
    message     what the text log says
    event       of a counted event: its kind, its detail and what it happened to
    run, assignment, learner, worker    ids of what the line belongs to
    trace_id, span_id                   where the process traces
    exception, stack                    a traceback, as one string

What a peer wrote stands in strings, whose control characters JSON escapes.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from lipt.common.process.log_context import log_context

# The attribute of a record that has an event's fields.
EVENT = "lipt_event"


class JsonFormatter(logging.Formatter):
    """A record as one JSON object; ASCII, so that no character can end a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The record's line."""
        event = getattr(record, EVENT, None)
        line: dict[str, Any] = {
            "time": _time(record.created),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **({"event": event} if event else {}),
            **log_context(),
            **_trace(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return json.dumps(line, default=str)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def _trace() -> dict[str, str]:
    # Who has never imported it does not trace.
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return {}
    context = api.get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}
