"""Starts one process per row, and tells what became of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from benchmarks.selection.meter import Cost
from benchmarks.selection.side import Chosen

ROOT = Path(__file__).resolve().parents[2]
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)


@dataclass(frozen=True)
class Limits:
    """What a row may take before it is given up."""

    time_limit_seconds: float
    memory_limit_gb: float


@dataclass(frozen=True)
class RowSpec:
    """What is measured.

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
