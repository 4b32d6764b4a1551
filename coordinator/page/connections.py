"""Connections of the page: a deadline for silent ones, and limits per address and in all.

A connection is silent while no request of it is under way. Beyond a limit the oldest silent one
gives way, so that who asks at once is served whatever others hold open.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from time import monotonic
from typing import Any

logger = logging.getLogger(__name__)

SILENT_SECONDS = 10.0
# A reverse proxy is one address.
MOST_OF_ADDRESS, MOST = 128, 256
_WARN_EVERY_SECONDS = 60.0


class Connections:
    """The open connections of one server, oldest first."""

    def __init__(self) -> None:
        self._open: dict[Any, None] = {}
        self._warned_at = -math.inf

    def add(self, new: Any) -> None:
        """Count a connection; beyond a limit another one, or this one, is closed."""
        self._open[new] = None
        own = [one for one in self._open if one.address == new.address]
        crowded = own if len(own) > MOST_OF_ADDRESS else list(self._open)
        if len(own) <= MOST_OF_ADDRESS and len(self._open) <= MOST:
            return
        leaving = next((one for one in crowded if one is not new and one.is_silent()), new)
        self.remove(leaving)
        leaving.transport.abort()
        if monotonic() - self._warned_at >= _WARN_EVERY_SECONDS:
            self._warned_at = monotonic()
            logger.warning(
                "the page has %d connections, %d of them of %s: silent ones are closed",
                *(len(self._open), len(own), new.address),
            )

    def remove(self, one: Any) -> None:
        """Forget a connection that has ended."""
        self._open.pop(one, None)


def guarded(protocol: type[Any], connections: Connections) -> Callable[..., asyncio.Protocol]:
    """Uvicorn's protocol class, each of whose connections is counted and watched."""

    class Guarded(protocol):  # type: ignore[misc]
        address = ""
        _looked_at: object = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.address = self.client[0] if self.client else ""
            self._timer = self.loop.call_later(SILENT_SECONDS, self._look)
            connections.add(self)

        def connection_lost(self, exc: Exception | None) -> None:
            self._timer.cancel()
            connections.remove(self)
            super().connection_lost(exc)

        def is_silent(self) -> bool:
            return self.cycle is None or self.cycle.response_complete

        def _look(self) -> None:
            # A connection whose last request is the same as before has sent none, or a part.
            if self.is_silent() and self.cycle is self._looked_at:
                self.transport.abort()
                return
            self._looked_at = self.cycle
            self._timer = self.loop.call_later(SILENT_SECONDS, self._look)

    return Guarded
