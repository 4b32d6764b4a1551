"""Open streams: how many live streams a session may have at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from lipt.common.errors import TooManyCallsError

# A browser opens no more than six connections to one place over HTTP/1.1.
MAX_LIVE_STREAMS = 6


class OpenStreams:
    """Counts them by session; belongs to the event loop."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    def require_room(self, session: str) -> None:
        """Refuse one more stream.

        Raises:
            TooManyCallsError: the session has as many as it may.
        """
        if self._open[session] >= MAX_LIVE_STREAMS:
            raise TooManyCallsError(
                f"{MAX_LIVE_STREAMS} live streams of this session are open. Close another tab "
                "with this page.",
                retry_after_seconds=5.0,
            )

    @contextmanager
    def one_more(self, session: str) -> Iterator[None]:
        """A stream is open during the block."""
        self._open[session] += 1
        try:
            yield
        finally:
            self._open[session] -= 1
            if not self._open[session]:
                del self._open[session]
