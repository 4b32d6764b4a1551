"""Window: a part of a file as a file of its own, which reads no more than it is asked for."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

# What a header of most image formats fits into.
_BUFFER_BYTES = 4096


class Window(io.RawIOBase):
    """A seekable file over the bytes from `offset` on.

    Args:
        read: gives a range, by its offset and size; shorter where the file ends.
        offset: where the part begins.
        size: its bytes.
    """

    def __init__(self, read: Callable[[int, int], bytes], offset: int, size: int) -> None:
        super().__init__()
        self._read, self._offset, self._size, self._place = read, offset, size, 0

    def buffered(self) -> io.BufferedReader:
        """The same, with a small buffer, so that short reads cost little."""
        return io.BufferedReader(self, _BUFFER_BYTES)

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """The place in the part."""
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place in the part."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._size}[whence]
        self._place = max(0, start + offset)
        return self._place

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Fill a buffer as far as the part goes."""
        view = memoryview(buffer).cast("B")
        part = self._next(len(view))
        view[: len(part)] = part
        return len(part)

    def readall(self) -> bytes:
        """All that is left, in one read where the file allows that."""
        parts = iter(lambda: self._next(self._size), b"")
        return b"".join(parts)

    def _next(self, size: int) -> bytes:
        size = min(size, self._size - self._place)
        part = self._read(self._offset + self._place, size) if size > 0 else b""
        self._place += len(part)
        return part
