"""What a call takes: seconds of CPU and of clock, and memory beyond what was there before."""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

ResultT = TypeVar("ResultT")

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Cost:
    cpu_seconds: float
    wall_seconds: float
    extra_mb: float
    # Of the whole process, signals and libraries included.
    peak_mb: float


def metered(call: Callable[[], ResultT], device: str) -> tuple[ResultT, Cost]:
    """The result and its cost; on a GPU memory is the GPU's."""
    return _on_gpu(call) if device == "cuda" else _on_cpu(call)


def _on_cpu(call: Callable[[], ResultT]) -> tuple[ResultT, Cost]:
    gc.collect()
    before_mb = _forget_peak()
    started, started_cpu = time.perf_counter(), time.process_time()
    result = call()
    cpu, wall = time.process_time() - started_cpu, time.perf_counter() - started
    peak_mb = _peak_mb()
    return result, Cost(cpu, wall, max(0.0, peak_mb - before_mb), peak_mb)


def _on_gpu(call: Callable[[], ResultT]) -> tuple[ResultT, Cost]:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    started, started_cpu = time.perf_counter(), time.process_time()
    result = call()
    torch.cuda.synchronize()
    cpu, wall = time.process_time() - started_cpu, time.perf_counter() - started
    peak = torch.cuda.max_memory_allocated()
    return result, Cost(cpu, wall, (peak - before) / 1e6, peak / 1e6)


def _forget_peak() -> float:
    """Set the high-water mark of resident memory back to what is resident now, and tell that.

    Where the kernel does not let us, the mark stays: memory below it is not seen.
    """
    try:
        _CLEAR.write_text("5")
    except OSError:
        return _peak_mb()
    return _field_mb("VmRSS")


def _peak_mb() -> float:
    if not _STATUS.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return _field_mb("VmHWM")


def _field_mb(name: str) -> float:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f"{_STATUS} does not tell {name}")
