"""Tracing: spans of OpenTelemetry where the process has it, else nothing.

OpenTelemetry is never imported here. W3C's `traceparent` travels between processes; a process
without OpenTelemetry passes it on.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

# The key of W3C Trace Context, in gRPC's metadata as in HTTP's headers.
TRACEPARENT = "traceparent"

_NAME = "lipt"
# Version, trace, span, flags. A later version may say more, which is left out.
_GRAMMAR = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})"
)
_VERSION_0_CHARACTERS, _MAX_CHARACTERS = 55, 256

# What came from elsewhere, where there is no OpenTelemetry to keep it.
_carried: ContextVar[str] = ContextVar("lipt_traceparent", default="")


class Span:
    """What a process does for a while; says nothing where there is no OpenTelemetry."""

    def __init__(self, begun: Any = None) -> None:
        self._begun = begun

    def note(self, **attributes: str | float) -> None:
        """Add attributes, named as `lipt.NAME`; not what is secret, nor a peer's text."""
        self.note_as(_own(attributes))

    def note_as(self, named: dict[str, str | float]) -> None:
        """Add attributes whose names are conventions of OpenTelemetry."""
        if self._begun is not None:
            self._begun.set_attributes(named)

    def fail(self, error_type: str) -> None:
        """Mark it as failed, with a word for the kind of error."""
        api = _api()
        if api is not None and self._begun is not None:
            self._begun.set_status(api.Status(api.StatusCode.ERROR))
            self.note_as({"error.type": error_type})

    def end(self) -> None:
        """End a span that `begin` gave."""
        if self._begun is not None:
            self._begun.end()

    @property
    def traceparent(self) -> str:
        """Its own; empty where there is none."""
        return "" if self._begun is None else _traceparent(self._begun.get_span_context())


@contextmanager
def span(
    name: str,
    *,
    kind: str = "INTERNAL",
    link: str = "",
    named: dict[str, str | float] | None = None,
    **attributes: str | float,
) -> Iterator[Span]:
    """The block as a span within the one that is current; an error in it fails it."""
    api = _api()
    if api is None:
        yield Span()
        return
    begun = begin(name, kind=kind, link=link, named=named, **attributes)
    with api.use_span(
        begun._begun,  # noqa: SLF001 - its own module's
        end_on_exit=True,
        record_exception=False,
        set_status_on_exception=False,
    ):
        try:
            yield begun
        except Exception as error:
            begun.fail(_kind_of(error))
            raise
        except BaseException:  # cancelled, or dropped: nobody's fault
            begun.note(interrupted=True)
            raise


def begin(
    name: str,
    *,
    kind: str = "INTERNAL",
    link: str = "",
    named: dict[str, str | float] | None = None,
    **attributes: str | float,
) -> Span:
    """A span that is not made current, and that the caller ends; the arguments are `span`'s."""
    api = _api()
    if api is None:
        return Span()
    other = _context(api, link)
    return Span(
        _tracer(api.get_tracer_provider()).start_span(
            name,
            kind=api.SpanKind[kind],
            attributes={**(named or {}), **_own(attributes)},
            links=() if other is None else (api.Link(other),),
        )
    )


def is_tracing() -> bool:
    """Whether this process has a tracer provider, its own or this package's."""
    api = _api()
    return api is not None and not isinstance(api.get_tracer_provider(), api.ProxyTracerProvider)


def current_traceparent() -> str:
    """What a call takes along; empty where there is no trace."""
    api = _api()
    found = "" if api is None else _traceparent(api.get_current_span().get_span_context())
    return found or _carried.get()


@contextmanager
def attached(traceparent: str) -> Iterator[None]:
    """Make what the block does a part of another process's span; nothing where that is empty."""
    api = _api()
    context = None if api is None else _context(api, traceparent)
    token = _carried.set(valid_traceparent(traceparent) or _carried.get())
    try:
        if api is None or context is None:
            yield
            return
        with api.use_span(
            api.NonRecordingSpan(context), record_exception=False, set_status_on_exception=False
        ):
            yield
    finally:
        _carried.reset(token)


def join(traceparent: str) -> None:
    """Make all that this task does from here on a part of another process's span."""
    api = _api()
    context = None if api is None else _context(api, traceparent)
    if api is not None and context is not None:
        within = api.set_span_in_context(api.NonRecordingSpan(context))
        sys.modules["opentelemetry.context"].attach(within)


def valid_traceparent(text: str) -> str:
    """A peer's `traceparent` as version 00 writes it; empty where it is none."""
    match = _GRAMMAR.match(text)
    if match is None or len(text) > _MAX_CHARACTERS:
        return ""
    # The version that is known says no more; a later one goes on after a dash.
    rest = text[_VERSION_0_CHARACTERS:]
    if rest and (text.startswith("00") or not rest.startswith("-")):
        return ""
    trace, span_id, flags = match.groups()
    return f"00-{trace}-{span_id}-{int(flags, 16) & 1:02x}"


def _api() -> Any:
    # Who has never imported it has no tracer provider either.
    return sys.modules.get("opentelemetry.trace")


@lru_cache(maxsize=1)
def _tracer(provider: Any) -> Any:
    # To make one takes as long as a span.
    return provider.get_tracer(_NAME)


def _context(api: Any, traceparent: str) -> Any:
    valid = valid_traceparent(traceparent)
    if not valid:
        return None
    _, trace, span_id, flags = valid.split("-")
    return api.SpanContext(
        int(trace, 16),
        int(span_id, 16),
        is_remote=True,
        trace_flags=api.TraceFlags(int(flags, 16)),
    )


def _traceparent(context: Any) -> str:
    if not context.is_valid:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags & 1:02x}"


def _own(attributes: dict[str, str | float]) -> dict[str, str | float]:
    return {f"{_NAME}.{name}": value for name, value in attributes.items()}


def _kind_of(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return reason if isinstance(reason, str) and reason.isupper() else type(error).__name__
