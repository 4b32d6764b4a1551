"""Runner: one process per row, what its call takes, and what became of it."""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import torch
from safetensors.torch import load_file

from benchmarks.selection.side import Chosen

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


ROOT = Path(__file__).resolve().parents[2]
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)


@dataclass(frozen=True)
class Limits:
    """Limits of a row before it is given up."""

    time_limit_seconds: float
    memory_limit_gb: float


@dataclass(frozen=True)
class RowSpec:
    """Settings of a measurement.

    folder: with the signals.
    mapped: whether the signals stay a mapped file, as the service has them.
    """

    group: str
    side: str
    folder: str
    budget: int
    deepcore: str | None = None
    cords: str | None = None
    threads: int = 1
    device: str = "cpu"
    mapped: bool = False


@dataclass(frozen=True)
class Outcome:
    """problem: why there is no cost; empty where there is one."""

    spec: RowSpec
    cost: Cost | None = None
    chosen: Chosen | None = None
    problem: str = ""


def measure_row(spec: RowSpec, limits: Limits) -> Outcome:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "spec").write_text(json.dumps(asdict(spec) | asdict(limits)))
        environment = os.environ | dict.fromkeys(THREAD_VARIABLES, str(spec.threads))
        finished = subprocess.run(
            [sys.executable, "-m", "benchmarks.selection.row", str(folder / "spec")],
            check=False,
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        return _outcome(spec, limits, folder, finished)


def _outcome(
    spec: RowSpec, limits: Limits, folder: Path, finished: subprocess.CompletedProcess[bytes]
) -> Outcome:
    if finished.returncode == -signal.SIGPROF:
        return Outcome(spec, problem=f"> {limits.time_limit_seconds:.0f} s, given up")
    if finished.returncode in (-signal.SIGABRT, -signal.SIGKILL, -signal.SIGSEGV):
        name = signal.Signals(-finished.returncode).name
        return Outcome(
            spec, problem=f"ended by {name}, most likely past {limits.memory_limit_gb:.0f} GB"
        )
    if finished.returncode:
        last = finished.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return Outcome(spec, problem=f"exit {finished.returncode}: {' '.join(last)}"[:160])
    found = json.loads((folder / "outcome").read_text())
    if "problem" in found:
        return Outcome(spec, problem=found["problem"])
    tensors = load_file(folder / "chosen")
    chosen = Chosen(tensors["indices_K"].to(torch.int64), tensors["weights_K"])
    return Outcome(spec, cost=Cost(**found), chosen=chosen)


def write_signals(shape_arguments: list[str], folder: Path) -> None:
    """Make signals in a process of its own, so that this one stays small."""
    subprocess.run(
        [sys.executable, "-m", "benchmarks.selection.workload", str(folder), *shape_arguments],
        check=True,
        cwd=ROOT,
    )
