"""Journal: whether SQLite's write-ahead log still has all that was committed.

SQLite reads a damaged log up to its first wrong frame, and drops the rest without a word. After a
`kill -9` its index (`-shm`) still counts the committed frames. The index is never ahead of a log
that is whole, because the log is synced first; after a loss of power it may be behind.

Source: https://www.sqlite.org/fileformat2.html#walformat and https://www.sqlite.org/walformat.html.
"""

from __future__ import annotations

import struct
from pathlib import Path

from lipt.common.blobs.files import state_errors
from lipt.common.errors import StateError

# The last bit tells the order of bytes that the checksums are computed in.
_MAGIC = 0x377F0682
_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
# Of the index, which has it twice: the number of committed frames, and the log's salts.
_INDEX = struct.Struct("=16x I 12x 8s 8x")


def require_whole_journal(database: Path) -> None:
    """A StateError if the log of a closed database lacks a committed frame; changes no file."""
    log_path, index_path = (Path(f"{database}{suffix}") for suffix in ("-wal", "-shm"))
    with state_errors(log_path):
        # The index first: another process may add to the log.
        index = index_path.read_bytes() if index_path.is_file() else b""
        log = log_path.read_bytes() if log_path.is_file() else b""
    num_kept, num_committed = num_frames(log), num_committed_frames(index, log)
    if num_kept is None or num_kept < num_committed:
        raise StateError(
            f"{log_path} is damaged or missing: acknowledged records in it are lost. Put it back, "
            "or start on a copy that lipt state backup made."
        )


def num_frames(log: bytes) -> int | None:
    """The number of frames up to the first wrong one; None if the log's header is wrong."""
    if len(log) <= _HEADER.size:
        return 0  # a crash may come before its first frame
    magic, _, page_bytes, _, _, _, *sums = _HEADER.unpack_from(log)
    order = ">" if magic & 1 else "<"
    if magic | 1 != _MAGIC | 1 or (at := _checksum(log[:24], (0, 0), order)) != tuple(sums):
        return None
    salts = log[16:24]
    frames = range(_HEADER.size, len(log) - _FRAME.size - page_bytes + 1, _FRAME.size + page_bytes)
    for number, start in enumerate(frames):
        stop = start + _FRAME.size + page_bytes
        at = _checksum(log[start : start + 8] + log[start + _FRAME.size : stop], at, order)
        if log[start + 8 : start + 16] != salts or at != _FRAME.unpack_from(log, start)[4:]:
            return number
    return len(frames)


def num_committed_frames(index: bytes, log: bytes) -> int:
    """The number of frames that the index counts of this log, or of a missing one."""
    header = index[: _INDEX.size]
    if len(header) < _INDEX.size or header != index[_INDEX.size : 2 * _INDEX.size]:
        return 0
    number, salts = _INDEX.unpack(header)
    return int(number) if not log or salts == log[16:24] else 0


def _checksum(content: bytes, sums: tuple[int, int], order: str) -> tuple[int, int]:
    first, second = sums
    for left, right in struct.iter_unpack(f"{order}II", content):
        first = (first + left + second) & 0xFFFFFFFF
        second = (second + right + first) & 0xFFFFFFFF
    return first, second
