import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def resident_bytes(pid: int | str = "self", *, peak: bool = False) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(rf"{'VmHWM' if peak else 'VmRSS'}:\s+(\d+) kB", status)
    assert found is not None, f"process {pid} has ended"
    return int(found[1]) * 1024


def reset_peak(pid: int | str = "self") -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


@contextmanager
def memory_growth(at_most_bytes: int, pid: int | str = "self") -> Iterator[None]:
    reset_peak(pid)
    before = resident_bytes(pid)
    yield
    growth = resident_bytes(pid, peak=True) - before
    assert growth <= at_most_bytes, f"{growth / 2**20:.0f} MiB more"
