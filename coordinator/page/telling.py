"""Telling: requests that were refused or have failed, as an operator is told of such calls."""

from __future__ import annotations

import logging
import uuid

from starlette.requests import Request

from lipt.common.errors import LiptError, TooManyCallsError
from lipt.common.observability.events import EventKind, Events

logger = logging.getLogger(__name__)


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


def incident(error: Exception, where: str) -> LiptError:
    """What a browser is told of an exception that nobody foresaw; the log has it all."""
    number = uuid.uuid4().hex[:8]
    logger.error("incident %s in %s", number, where, exc_info=error)
    return LiptError(f"internal error; the coordinator's log has it as incident {number}.")
