"""What is seen of a process, from files as the system would show them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from lipt.coordinator.compute.child import out_of_memory
from lipt.coordinator.compute.process import (
    MemoryWatch,
    Resident,
    Seen,
    ended_for_memory,
    resident,
)

MB = 2**20


class Proc:
    """A /proc with one process."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "7").mkdir()

    def shows(self, *, peak_kb: int, data_kb: int) -> None:
        text = f"Name:\tpython\nVmHWM:\t  {peak_kb} kB\nVmRSS:\t1 kB\nVmData:\t  {data_kb} kB\n"
        (self.root / "7" / "status").write_text(text)

    def counts(self, kills: int) -> None:
        (self.root / "vmstat").write_text(f"pgfault 123\noom_kill {kills}\n")

    def watch(self) -> MemoryWatch:
        return MemoryWatch(7, proc=self.root)


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def test_the_most_that_was_seen_stays_when_the_process_is_gone(proc: Proc) -> None:
    proc.counts(4)
    watch = proc.watch()
    proc.shows(peak_kb=1000, data_kb=3000)
    watch.look()
    proc.shows(peak_kb=2000, data_kb=500)
    watch.look()
    (proc.root / "7" / "status").unlink()
    watch.look()
    proc.counts(5)
    assert watch.seen() == Seen(2000 * 1024, 3000 * 1024, kills=1)


def test_a_system_that_shows_nothing_is_no_error(proc: Proc) -> None:
    watch = proc.watch()
    watch.look()
    assert watch.seen() == Seen()


def test_this_process_is_seen() -> None:
    watch = MemoryWatch(os.getpid())
    watch.look()
    assert watch.seen().resident_bytes > 10 * MB
    assert watch.seen().data_bytes > 10 * MB


@pytest.mark.parametrize(
    ("exit_code", "seen", "for_memory"),
    [
        # The system counted a kill; or it was half of the machine; or a person did it.
        (-signal.SIGKILL, Seen(10 * MB, 10 * MB, kills=1), True),
        (-signal.SIGKILL, Seen(500 * MB, 10 * MB), True),
        (-signal.SIGKILL, Seen(499 * MB, 200 * MB), False),
        # Of 200 MB it had 180, or less.
        (1, Seen(10 * MB, 180 * MB), True),
        (-signal.SIGABRT, Seen(10 * MB, 180 * MB), True),
        (1, Seen(10 * MB, 179 * MB), False),
        (-signal.SIGSEGV, Seen(), False),
        (None, Seen(), False),
    ],
)
def test_memory_is_told_from_other_ends(
    exit_code: int | None, seen: Seen, for_memory: bool
) -> None:
    limits = {"limit_bytes": 200 * MB, "machine_bytes": 1000 * MB}
    assert ended_for_memory(exit_code, seen, **limits) is for_memory


def test_error_has_the_figures_and_the_remedy() -> None:
    error = out_of_memory("MakeSoup", "it had 2 GB", limit_bytes=3 * 10**9)
    assert str(error).startswith("MakeSoup ran out of memory: it had 2 GB. The compute process may")
    assert "3.0 GB (limits.compute_memory)" in str(error)
    assert not error.retryable


def test_what_a_process_has_is_read_while_it_is_there(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status").write_text("Name:\tx\nVmHWM:\t    30 kB\nVmRSS:\t    20 kB\n")
    assert resident(7, proc=tmp_path) == Resident(now_bytes=20 * 1024, peak_bytes=30 * 1024)
    assert resident(8, proc=tmp_path) is None
    own = resident(os.getpid())
    assert own is not None
    assert 0 < own.now_bytes <= own.peak_bytes
