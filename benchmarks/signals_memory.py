"""Memory that signals of very many examples take, computed in memory and in a mapped file.

Made-up images of 4 x 4 pixels, a network of two layers with 512 features and 1,000 classes. Then
the signals are saved, mapped from what was saved, and selected on. Memory is the peak of what
cannot go to the disk (RssAnon), above that before a stage; each way is a process of its own.

    python -m benchmarks.signals_memory [--examples 1280000] [--folder DIR]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from lipt.common.data.dataset import in_memory
from lipt.common.determinism import pinned_kernels
from lipt.common.images.formats import ImageFormat
from lipt.common.signals.passes import Batches
from lipt.core.selection.registry import find_strategy
from lipt.core.selection.select import select
from lipt.core.signals.compute import compute_signals
from lipt.core.signals.signals import Signals

NUM_CLASSES, NUM_FEATURES, SIDE, BATCH = 1000, 512, 4, 1024
FORMAT = ImageFormat(1, SIDE, SIDE, mean=(0.5,), std=(0.25,))
SECONDS_BETWEEN = 0.02


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=1_280_000)
    parser.add_argument("--folder", type=Path, help="on a disk; a temporary one by default")
    parser.add_argument("--way", choices=["memory", "mapped"], help="measure this alone, as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        if arguments.way is not None:
            print(json.dumps(measured(arguments.examples, arguments.way, Path(folder))))
            return
        table = Table("computed in", "stage", "seconds", "peak MB of anonymous memory")
        table.title = f"{arguments.examples} x ({NUM_CLASSES} + {NUM_FEATURES})"
        for way in ("memory", "mapped"):
            command = [sys.executable, "-m", "benchmarks.signals_memory", "--way", way]
            size = ["--examples", str(arguments.examples), "--folder", folder]
            done = subprocess.run([*command, *size], check=True, capture_output=True, text=True)
            for stage, (seconds, peak_mb) in json.loads(done.stdout).items():
                table.add_row(way, stage, f"{seconds:.0f}", f"{peak_mb:.0f}")
        Console().print(table)


def measured(num_examples: int, way: str, folder: Path) -> dict[str, tuple[float, float]]:
    """Seconds and peak of each stage."""
    torch.manual_seed(0)
    images = torch.randint(256, (num_examples, 1, SIDE, SIDE), dtype=torch.uint8)
    labels_N = torch.arange(num_examples) % NUM_CLASSES
    names = tuple(str(label) for label in range(NUM_CLASSES))
    dataset = in_memory("made-up", names, labels_N, "none", images)
    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(SIDE * SIDE, NUM_FEATURES),
        nn.ReLU(),
        nn.Linear(NUM_FEATURES, NUM_CLASSES),
    )
    batches = Batches(dataset, FORMAT, torch.device("cpu"), BATCH, lambda *_: None)
    scratch = folder if way == "mapped" else None
    found: dict[str, tuple[float, float]] = {}
    with pinned_kernels(1):
        with stage(found, "computing"):
            signals = compute_signals(model, batches, scratch=scratch)
        with stage(found, "saving"):
            signals.save(folder / "signals")
        del signals
        with stage(found, "selecting, grand"):
            strategy = find_strategy("grand")
            select(
                strategy,
                Signals.load(folder / "signals"),
                num_examples // 10,
                balanced=True,
                seed=0,
                options=strategy.parse_options({}),
            )
    return found


@contextmanager
def stage(found: dict[str, tuple[float, float]], name: str) -> Iterator[None]:
    """Sample what a stage holds, above what there was before it."""
    before, started, ended = anonymous_mb(), time.perf_counter(), threading.Event()
    peaks = [before]

    def sample() -> None:
        while not ended.wait(SECONDS_BETWEEN):
            peaks.append(anonymous_mb())

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        found[name] = time.perf_counter() - started, max(peaks) - before


def anonymous_mb() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("RssAnon"))


if __name__ == "__main__":
    main()
