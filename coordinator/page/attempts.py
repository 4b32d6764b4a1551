"""Attempts: how often one address may try to sign in.

A token cannot be guessed, whoever tries for however long; but who tries is not to keep the
coordinator busy, nor to fill its log.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from lipt.common.errors import TooManyCallsError
from lipt.coordinator.rpc.peer_limits import used

_PER_SECOND = 0.5
_AT_ONCE_SECONDS = 20.0  # ten of them
_MAX_ADDRESSES = 10_000


class Attempts:
    """Counts failed attempts by address; belongs to the event loop."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until: OrderedDict[str, float] = OrderedDict()

    def require_room(self, address: str) -> None:
        """Refuse who has failed too often lately.

        Raises:
            TooManyCallsError: says when to come again.
        """
        now = self._clock()
        waits = self._used(address, now)[1]
        if waits:
            raise TooManyCallsError(
                f"too many attempts to sign in have failed from {address}. Try again in "
                f"{waits:.0f} s.",
                retry_after_seconds=waits,
            )

    def note_failure(self, address: str) -> None:
        """An attempt has failed."""
        self._until[address] = self._used(address, self._clock())[0]
        self._until.move_to_end(address)
        while len(self._until) > _MAX_ADDRESSES:
            self._until.popitem(last=False)

    def _used(self, address: str, now: float) -> tuple[float, float]:
        until = self._until.get(address, 0.0)
        return used(until, now, per_second=_PER_SECOND, burst_seconds=_AT_ONCE_SECONDS)
