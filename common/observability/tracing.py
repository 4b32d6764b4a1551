"""Tracing: spans of OpenTelemetry where the process has imported it, else nothing.

W3C's `traceparent` says across processes which span something is a part of.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from typing import Any

# The key of W3C Trace Context, in gRPC's metadata as in HTTP's headers.
TRACEPARENT = "traceparent"
# An attribute of a call's span: the number of its gRPC status.
CALL_STATUS = "rpc.grpc.status_code"

_NAME = "lipt"
# Calls that only wait, or repeat often.
_SPANLESS = frozenset(
    {
        "/lipt.v1.InfoService/GetInfo",
        "/lipt.v1.RunService/GetRun",
        "/lipt.v1.RunService/ListRuns",
        "/lipt.v1.RunService/WatchRun",
        "/lipt.v1.WorkerService/AcquireAssignment",
        "/lipt.v1.WorkerService/Heartbeat",
        "/lipt.v1.WorkerService/Register",
    }
)


class Span:
    """A span that has begun; does nothing where there is no OpenTelemetry."""

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
        return "" if self._begun is None else _written(self._begun.get_span_context())


def begin(
    name: str,
    *,
    kind: str = "INTERNAL",
    link: str = "",
    named: dict[str, str | float] | None = None,
    **attributes: str | float,
) -> Span:
    """A span that is not current, and that the caller ends.

    `link` is another span's `traceparent`; `named` has attributes under names of OpenTelemetry's.
    """
    api = _api()
    if api is None:
        return Span()
    other = _remote(link)
    return Span(
        _tracer(api.get_tracer_provider()).start_span(
            name,
            kind=api.SpanKind[kind],
            attributes={**(named or {}), **_own(attributes)},
            links=() if other is None else (api.Link(other.get_span_context()),),
        )
    )


@contextmanager
def within(begun: Span) -> Iterator[Span]:
    """Make a span current in the block, and end it there; an error fails it."""
    with _current(begun._begun, ends=True):  # noqa: SLF001 - its own module's
        try:
            yield begun
        except Exception as error:
            begun.fail(_kind_of(error))
            raise
        except BaseException:  # cancelled, or dropped: nobody's fault
            begun.note(interrupted=True)
            raise


@contextmanager
def span(name: str, *, link: str = "", **attributes: str | float) -> Iterator[Span]:
    """The block as a span within the one that is current; an error in it fails it."""
    with within(begin(name, link=link, **attributes)) as begun:
        yield begun


def is_spanless(method: str) -> bool:
    """Whether calls of a method (`/package.Service/Method`) are no spans."""
    return method in _SPANLESS or not method.startswith("/lipt.v1.")


def begin_call(method: str, kind: str) -> Span:
    """The span of a call, at its client or its server."""
    service, _, name = method.removeprefix("/").partition("/")
    named = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": name}
    return begin(method.removeprefix("/"), kind=kind, named={**named})


def is_tracing() -> bool:
    """Whether this process has a tracer provider, its own or this package's."""
    api = _api()
    return api is not None and not isinstance(api.get_tracer_provider(), api.ProxyTracerProvider)


def current_traceparent() -> str:
    """What a call takes along; empty where there is no trace."""
    api = _api()
    return "" if api is None else _written(api.get_current_span().get_span_context())


def received(metadata: Any) -> str:
    """The `traceparent` in a peer's metadata; empty where there is none, or not one."""
    found = [str(value) for key, value in metadata or () if key == TRACEPARENT]
    remote = _remote(found[0]) if len(found) == 1 else None
    return "" if remote is None else _written(remote.get_span_context())


@contextmanager
def attached(traceparent: str) -> Iterator[None]:
    """Make what the block does a part of another process's span; nothing where that is empty."""
    with _current(_remote(traceparent), ends=False):
        yield


def join(traceparent: str) -> None:
    """Make all that this task does from here on a part of another process's span."""
    api, remote = _api(), _remote(traceparent)
    if api is not None and remote is not None:
        sys.modules["opentelemetry.context"].attach(api.set_span_in_context(remote))


def _api() -> Any:
    # Who has never imported it has no tracer provider either.
    return sys.modules.get("opentelemetry.trace")


@contextmanager
def _current(begun: Any, *, ends: bool) -> Iterator[None]:
    api = _api()
    if api is None or begun is None:
        yield
        return
    with api.use_span(
        begun, end_on_exit=ends, record_exception=False, set_status_on_exception=False
    ):
        yield


@lru_cache(maxsize=1)
def _tracer(provider: Any) -> Any:
    # To make one takes as long as a span.
    return provider.get_tracer(_NAME)


def _remote(traceparent: str) -> Any:
    """Another process's span; None where the text is not one, or nobody here could use it."""
    api = _api()
    if api is None or not traceparent:
        return None
    w3c = import_module("opentelemetry.trace.propagation.tracecontext")
    context = w3c.TraceContextTextMapPropagator().extract({TRACEPARENT: traceparent})
    found = api.get_current_span(context)
    return found if found.get_span_context().is_valid else None


def _written(context: Any) -> str:
    if not context.is_valid:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags & 1:02x}"


def _own(attributes: dict[str, str | float]) -> dict[str, str | float]:
    return {f"{_NAME}.{name}": value for name, value in attributes.items()}


def _kind_of(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return reason if isinstance(reason, str) and reason.isupper() else type(error).__name__
