"""Telling: requests that were refused, as an operator is told of calls that were."""

from __future__ import annotations

import logging

from starlette.requests import Request

from lipt.common.errors import LiptError, TooManyCallsError
from lipt.common.observability.events import EventKind, Events


def tell_refusal(events: Events, error: LiptError, request: Request) -> None:
    """Count a refusal, and log it; who is too fast is not to fill the log."""
    client = request.client
    events.record(
        EventKind.CALL_REFUSED,
        detail=error.reason,
        level=logging.DEBUG if isinstance(error, TooManyCallsError) else logging.INFO,
        method=f"{request.method} {request.url.path[:200]}",
        peer=f"{client.host}:{client.port}" if client is not None else "",
        reason=str(error),
    )
