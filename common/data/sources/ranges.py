"""Ranges: reading a remote file in parts, of which more is fetched the longer they follow on.

A request costs about as long as a hundred kilobytes take. So a part is fetched with some of what
follows it, which doubles while parts are read in order; what is read here and there is fetched
alone.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

_LEAST, _MOST = 16 * 2**10, 4 * 2**20

# The header of the next file, which stands behind the end of one, lies in the part before.
_KEPT_PARTS = 3


class Ranges:
    """One file.

    Args:
        fetch: gives the bytes from a start to an end, fewer where the file ends before.
    """

    def __init__(self, fetch: Callable[[int, int], bytes]) -> None:
        self._fetch = fetch
        self._parts: deque[tuple[int, bytes]] = deque(maxlen=_KEPT_PARTS)
        self._ahead = _LEAST
        self._lock = threading.Lock()

    def read(self, offset: int, size: int) -> bytes:
        """A range, from any thread; shorter where the file ends."""
        with self._lock:
            for start, part in self._parts:
                if start <= offset and offset + size <= start + len(part):
                    return part[offset - start : offset - start + size]
            follows = any(
                start <= offset <= start + len(part) + _LEAST for start, part in self._parts
            )
            self._ahead = min(2 * self._ahead, _MOST) if follows else _LEAST
            part = self._fetch(offset, offset + max(size, self._ahead))
            self._parts.append((offset, part))
            return part[:size]
