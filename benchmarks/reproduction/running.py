"""Running cells: each process takes the next that is nobody's, until none is missing."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.reproduction.cells import Cell
from benchmarks.reproduction.results import Results, claimed
from benchmarks.reproduction.scales import Scale
from benchmarks.reproduction.service import Service
from benchmarks.reproduction.training import Bench, train
from lipt.common.data import open_dataset
from lipt.common.errors import LiptError
from lipt.common.process.devices import device_name, resolve_device, versions
from lipt.trainer.client.client import Client
from lipt.trainer.main_training import TrainingPaused

_ROOT = Path(__file__).resolve().parents[2]


def run(
    cells: Sequence[Cell],
    scale: Scale,
    address: str,
    results: Results,
    work: Path,
    *,
    minutes: float,
) -> int:
    """Do what is missing, and write each result as it comes.

    Args:
        cells: in the order in which they are wanted.
        scale: of all of them.
        address: the coordinator's.
        results: what there is.
        work: where claims are kept.
        minutes: how long; a training that needs longer is paused, and goes on the next time.

    Returns:
        How many could not be done.
    """
    until = time.monotonic() + 60 * minutes
    data, test = open_dataset(scale.train), open_dataset(scale.test)
    facts = machine(scale)
    num_failed = 0
    with Client(address) as client:
        bench = Bench(
            scale,
            Service(client, scale),
            data,
            test,
            checkpoints=work / "checkpoints",
            time_left=lambda: max(0.0, until - time.monotonic()),
            known=results.of_the_same_examples,
        )
        for cell in cells:
            if time.monotonic() > until:
                break
            with claimed(cell, work / "claims") as mine:
                if not mine or cell in results.read():
                    continue
                started = time.monotonic()
                try:
                    result = train(cell, bench)
                except TrainingPaused as paused:
                    at = f"step {paused.progress.step} of {paused.progress.num_steps}"
                    print(f"paused at {at}, to go on from there: {cell}", flush=True)
                    break
                except LiptError as error:
                    print(f"left out, {cell}: {error}", flush=True)
                    num_failed += 1
                    continue
                results.add(cell, result, {**facts, "load": os.getloadavg()[0]})
                seconds = time.monotonic() - started
                print(f"{result.accuracy:.1%} in {seconds:.0f} s: {cell}", flush=True)
    return num_failed


def machine(scale: Scale) -> dict[str, str]:
    """Where and with what a result was measured."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    device = resolve_device(scale.device)
    where = device_name(device) if device.type != "cpu" else _processor()
    return {"commit": commit, "machine": where, "torch": versions()["torch"]}


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(models)} x {models[0]}" if models else platform.processor()
