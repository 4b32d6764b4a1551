"""Logs: context, text and JSON form, and counted events."""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from threading import Lock
from time import monotonic
from types import MappingProxyType
from typing import Any, Literal

from opentelemetry.trace import get_current_span

from lipt.common.text import printable, printable_lines

logger = logging.getLogger(__name__)

# Per asyncio task; threads need `contextvars.copy_context().run`.
_context: ContextVar[Mapping[str, str]] = ContextVar(
    "lipt_log_context", default=MappingProxyType({})
)
# Attribute of a record for an event's fields.
_EVENT = "lipt_event"
# Records of a kind that `FloodFilter` passes in each period.
_MOST_ALIKE, _BURST_SECONDS = 20, 60.0
# gRPC's error, with a traceback, for each answer to a peer that has left.
_UNHEARD = ("grpc._cython.cygrpc", "ExecuteBatchError")
_PLAIN = re.compile(r"[\w./:+-]+\Z", re.ASCII)


def log_context() -> Mapping[str, str]:
    return _context.get()


def log_about(**ids: object) -> Token[Mapping[str, str]]:
    """Add ids to the rest of this task's log; for single-purpose tasks, such as a call's."""
    given = {name: str(value) for name, value in ids.items() if value != ""}
    return _context.set({**_context.get(), **given})


@contextmanager
def logging_about(**ids: object) -> Iterator[None]:
    token = log_about(**ids)
    try:
        yield
    finally:
        _context.reset(token)


class JsonFormatter(logging.Formatter):
    """A record as one JSON object a line; ASCII, so that no character can end a line."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "time": f"{time:%Y-%m-%dT%H:%M:%S.%f}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if event := getattr(record, _EVENT, None):
            line["event"] = event
        line |= log_context()
        context = get_current_span().get_span_context()
        if context.is_valid:
            line["trace_id"] = f"{context.trace_id:032x}"
            line["span_id"] = f"{context.span_id:016x}"
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return json.dumps(line, default=str)


class PrintableFormatter(logging.Formatter):
    """A record on one line, with any traceback indented below."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        return printable_lines(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:
        return printable_lines(super().formatStack(stack_info))


@dataclass
class _Burst:
    """Records alike since `began`, in seconds."""

    began: float
    number: int = 0


class FloodFilter(logging.Filter):
    """Passes the first refusals and tracebacks of a kind in each minute, and counts the others.

    Callers can cause both as often as they like.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._bursts: dict[tuple[str, str], _Burst] = {}
        self._lock = Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        kind, now = _flood_kind(record), self._clock()
        with self._lock:
            over = [
                key for key, burst in self._bursts.items() if now >= burst.began + _BURST_SECONDS
            ]
            ended = {key: self._bursts.pop(key).number for key in over}
            burst = None
            if kind is not None:
                burst = self._bursts.setdefault(kind, _Burst(now))
                burst.number += 1
        for alike, number in ended.items():
            if number > _MOST_ALIKE:
                more = number - _MOST_ALIKE
                logger.warning("and %d more in a minute: %s", more, " ".join(alike))
        return burst is None or burst.number <= _MOST_ALIKE


def _flood_kind(record: logging.LogRecord) -> tuple[str, str] | None:
    event = getattr(record, _EVENT, {})
    if event.get("kind") == EventKind.CALL_REFUSED:
        return EventKind.CALL_REFUSED, str(event.get("detail"))
    return _traceback_kind(record)


def _traceback_kind(record: logging.LogRecord) -> tuple[str, str] | None:
    """The name of the logger, and the type of the exception, if there is one."""
    if record.exc_info and record.exc_info[0] is not None:
        return record.name, record.exc_info[0].__name__
    return None


def is_own(record: logging.LogRecord) -> bool:
    """Whether a record is not of an answer whose caller has left, which is no error here."""
    return _traceback_kind(record) != _UNHEARD


def configure_logging(level: str, log_format: Literal["text", "json"] = "text") -> None:
    """Set up the process's log; for command lines, never at import."""
    handler = logging.StreamHandler()
    handler.addFilter(is_own)
    handler.addFilter(FloodFilter())
    if log_format == "json":
        handler.setFormatter(JsonFormatter())
        logging.captureWarnings(capture=True)
    else:
        handler.setFormatter(
            PrintableFormatter(
                "%(asctime)s %(levelname)-7s %(name)s: %(message)s", datefmt="%Y-%m-%dT%H:%M:%S%z"
            )
        )
    logging.basicConfig(level=level, handlers=[handler])
    for noisy in ("asyncio", "grpc", "PIL"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLevelName(level)))


class EventKind(StrEnum):
    """Kinds of counted events, some divided by `detail`: docs/operations.md explains each."""

    CALL_REFUSED = "call_refused"
    LEASE_EXPIRED = "lease_expired"
    LEARNER_REASSIGNED = "learner_reassigned"
    LEARNER_FAILED = "learner_failed"
    LEARNER_DAMAGED = "learner_damaged"
    LEARNER_DISPUTED = "learner_disputed"
    LEARNER_RETURNED = "learner_returned"
    JOB_DROPPED = "job_dropped"
    LEARNER_DECLINED = "learner_declined"
    LEARNER_QUARANTINED = "learner_quarantined"
    EXPIRED = "expired"
    PAUSED = "paused"
    RETRIED = "retried"
    RUN_HELD = "run_held"
    RUN_ENDED = "run_ended"


# Details shown before their first event, where there are any.
KNOWN_DETAILS: dict[EventKind, tuple[str, ...]] = {
    EventKind.CALL_REFUSED: (),  # every reason of `lipt.common.errors`
    EventKind.LEARNER_DISPUTED: ("", "settled"),
    EventKind.JOB_DROPPED: ("waiting", "computing"),
    EventKind.EXPIRED: ("blobs", "uploads", "runs"),
    EventKind.RETRIED: (
        # by the coordinator
        *("stage", "record", "compute", "lease expiry", "collection"),
        # by a worker
        *("joining", "heartbeat", "transfer", "caching", "handing over"),
    ),
    EventKind.RUN_ENDED: ("ready", "failed", "cancelled"),
}


class Events:
    """One process's events, counted since its start; safe to read from any thread."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[EventKind, str]] = Counter()

    def record(
        self, kind: EventKind, *, detail: str = "", level: int = logging.INFO, **fields: object
    ) -> None:
        """Count an event, and log it as `name=value` pairs with JSON's escapes on one line."""
        self._counts[kind, detail] += 1
        given = {k: v for k, v in {"detail": detail, **fields}.items() if v != ""}
        pairs = (f"{name}={_quoted(value)}" for name, value in {"event": kind, **given}.items())
        logger.log(level, " ".join(pairs), extra={_EVENT: {"kind": kind.value, **given}})

    def retried(
        self, what: str, reason: object, *, level: int = logging.WARNING, **fields: object
    ) -> None:
        self.record(EventKind.RETRIED, detail=what, level=level, **fields, reason=str(reason))

    def count(self, kind: EventKind, detail: str | None = None) -> int:
        return sum(
            number
            for (counted, under), number in self.counts().items()
            if counted is kind and detail in (None, under)
        )

    def counts(self) -> dict[tuple[EventKind, str], int]:
        return dict(self._counts)


def _quoted(value: object) -> str:
    text = str(value)
    return text if _PLAIN.match(text) else json.dumps(text)
