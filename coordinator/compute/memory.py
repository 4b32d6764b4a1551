"""Memory of the compute process: looked at while it works, so that its end can be explained."""

from __future__ import annotations

import re
import signal
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from lipt.common.errors import OutOfMemoryError
from lipt.common.sizes import format_bytes

_PROC = Path("/proc")
# At the last look; what came after it was not seen any more.
_NEARLY = 0.9
# Of the machine: what else ends a process of this size has its reasons in memory, too.
_LARGE = 0.5


@dataclass(frozen=True)
class Seen:
    """What there was to see of a process that has ended, most of it shortly before.

    Attributes:
        resident_bytes: the most that it had in memory.
        data_bytes: the most that counted for its limit.
        kills: how many processes the system has ended for want of memory meanwhile.
    """

    resident_bytes: int = 0
    data_bytes: int = 0
    kills: int = 0


@dataclass(frozen=True)
class Resident:
    """What a process has in memory now, and the most that it had, in bytes."""

    now_bytes: int
    peak_bytes: int


def resident(pid: int, *, proc: Path = _PROC) -> Resident | None:
    """The memory of a process; None where it is gone."""
    try:
        status = (proc / str(pid) / "status").read_text()
    except OSError:
        return None
    return Resident(_kilobytes("VmRSS", status), _kilobytes("VmHWM", status))


class MemoryWatch:
    """Looks at one process, as long as it is there."""

    def __init__(self, pid: int, *, proc: Path = _PROC) -> None:
        self._status = proc / str(pid) / "status"
        self._counters = proc / "vmstat"
        self._kills_before = self._kills()
        self._seen = Seen()

    def look(self) -> None:
        """Look at the process; harmless when it is gone."""
        with suppress(OSError):
            status = self._status.read_text()
            self._seen = replace(
                self._seen,
                resident_bytes=max(self._seen.resident_bytes, _kilobytes("VmHWM", status)),
                data_bytes=max(self._seen.data_bytes, _kilobytes("VmData", status)),
            )

    def seen(self) -> Seen:
        """What there was to see."""
        return replace(self._seen, kills=self._kills() - self._kills_before)

    def _kills(self) -> int:
        try:
            found = re.search(r"^oom_kill (\d+)", self._counters.read_text(), re.MULTILINE)
        except OSError:
            return 0
        return int(found[1]) if found else 0


def ended_for_memory(
    exit_code: int | None, seen: Seen, *, limit_bytes: int, machine_bytes: int
) -> bool:
    """Whether memory is why a process has ended.

    SIGKILL comes from the system when it has no memory left, which it counts, or from a
    service that acts before that, which takes large processes; else from a person. A process
    that ends in another way does so for memory if it was about to reach its own limit: some
    libraries end it when they are refused.

    Args:
        exit_code: of the process; negative for a signal, None where it is not known.
        seen: what there was to see of it.
        limit_bytes: what it was allowed.
        machine_bytes: what the machine has.
    """
    if exit_code == -signal.SIGKILL:
        return seen.kills > 0 or seen.resident_bytes >= _LARGE * machine_bytes
    return seen.data_bytes >= _NEARLY * limit_bytes


def out_of_memory(job: str, why: str, *, limit_bytes: int) -> OutOfMemoryError:
    """The error for a job that had not enough memory.

    Args:
        job: what was computed.
        why: how it showed, as a clause.
        limit_bytes: what the process is allowed.
    """
    return OutOfMemoryError(
        f"{job} ran out of memory: {why}. The compute process may take "
        f"{format_bytes(limit_bytes)} (limits.compute_memory); the same is not tried again. Choose "
        "a smaller model, smaller batches, a smaller validation.fraction or a strategy that needs "
        "less; or give it more, with --compute-memory on a machine that has it."
    )


def _kilobytes(name: str, status: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", status, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0
