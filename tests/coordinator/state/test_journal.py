import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from lipt.common.errors import StateError
from lipt.coordinator.state.journal import num_committed_frames, num_frames, require_whole_journal

# Eight bytes of the log's header are its salts; a frame is 24 bytes and a page.
HEADER_BYTES, FRAME_BYTES = 32, 24 + 4096


def put(path: Path, offset: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset, os.SEEK_SET if offset >= 0 else os.SEEK_END)
        file.write(content)


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A database as `kill -9` leaves it: with its log, and the log's index."""
    served = tmp_path / "served.db"
    with closing(sqlite3.connect(served, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE rows (text)")
        for _ in range(3):
            connection.execute("INSERT INTO rows VALUES (?)", ("x" * 5000,))
        for suffix in ("", "-wal", "-shm"):
            shutil.copy(f"{served}{suffix}", tmp_path / f"lipt.db{suffix}")
    return tmp_path / "lipt.db"


def rows(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("SELECT count(*) FROM rows").fetchone()[0])


def test_the_log_of_a_killed_process_is_whole(killed: Path) -> None:
    log, index = (Path(f"{killed}{suffix}").read_bytes() for suffix in ("-wal", "-shm"))
    assert num_frames(log) == num_committed_frames(index, log)
    assert num_frames(log) == (len(log) - HEADER_BYTES) / FRAME_BYTES
    require_whole_journal(killed)
    assert rows(killed) == 3


def cut(log: Path) -> None:
    os.truncate(log, log.stat().st_size - FRAME_BYTES)


def zero(log: Path) -> None:
    log.write_bytes(bytes(log.stat().st_size))


DAMAGES: list[Callable[[Path], object]] = [
    Path.unlink,
    cut,
    zero,
    lambda log: os.truncate(log, 0),
    lambda log: put(log, 0, b"?"),
    lambda log: put(log, HEADER_BYTES + FRAME_BYTES + 24, b"?"),
    lambda log: put(log, -1, b"?"),
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_log_without_a_committed_frame_is_refused_and_kept(
    killed: Path, damage: Callable[[Path], object]
) -> None:
    log = Path(f"{killed}-wal")
    damage(log)
    before = log.read_bytes() if log.exists() else None
    for _ in range(2):
        with pytest.raises(StateError, match=r"-wal is damaged or missing.*lipt state backup made"):
            require_whole_journal(killed)
    assert (log.read_bytes() if log.exists() else None) == before


def without_index(killed: Path) -> None:
    Path(f"{killed}-shm").unlink()


def with_a_torn_transaction(killed: Path) -> None:
    # A loss of power: the transaction was not acknowledged.
    with Path(f"{killed}-wal").open("ab") as log:
        log.write(bytes(FRAME_BYTES // 2))


def with_a_torn_index(killed: Path) -> None:
    put(Path(f"{killed}-shm"), 16, b"\xff\xff\xff\xff")


def with_the_index_of_another_log(killed: Path) -> None:
    for copy in (0, 48):
        put(Path(f"{killed}-shm"), copy + 16, b"\xff\xff\xff\x00")
        put(Path(f"{killed}-shm"), copy + 32, bytes(8))


@pytest.mark.parametrize(
    "ordinary",
    [
        without_index,
        with_a_torn_transaction,
        with_a_torn_index,
        with_the_index_of_another_log,
    ],
)
def test_what_a_loss_of_power_leaves_is_opened(
    killed: Path, ordinary: Callable[[Path], None]
) -> None:
    ordinary(killed)
    require_whole_journal(killed)
    assert rows(killed) == 3
