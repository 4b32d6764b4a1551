"""One call: CPU time of `lipt.select(data, fraction=0.1)`, beside an epoch of the run's model.

    OMP_WAIT_POLICY=PASSIVE python -m benchmarks.one_call [--only digits table photos]

CPU seconds are of the process, after a first call that imports all modules. The setting is that of
`lipt select`: threads that wait sleep. Photos are JPEG files that the benchmark makes.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import lipt
from benchmarks.choice_price import epoch_seconds
from benchmarks.photos import write_photos
from lipt.data.loading import open_data
from lipt.models.registry import default_model

_FRACTION = 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU seconds of one call.")
    parser.add_argument("--only", nargs="+", default=list(DATA), choices=list(DATA))
    parser.add_argument("--tiny", action="store_true", help="a few examples, to try the script")
    arguments = parser.parse_args()
    columns = ("data", "examples", "CPU s", "goal, s", "an epoch, CPU s", "epochs", "chosen by")
    shown = Table(*columns, title="lipt.select(data, fraction=0.1)")
    lipt.select("digits", fraction=_FRACTION, progress=False)
    for name in arguments.only:
        make, count, goal = DATA[name]
        count = 60 if arguments.tiny else count
        with tempfile.TemporaryDirectory() as folder:
            data = make(Path(folder), count)
            started = time.process_time()
            subset = lipt.select(data, fraction=_FRACTION, progress=False)
            seconds = time.process_time() - started
            opened = open_data(data)
            epoch = epoch_seconds(opened, default_model(opened.inputs))
        method = str(subset.manifest["findings"].get("method", ""))
        figures = (f"{seconds:.1f}", str(goal), f"{epoch:.1f}", f"{seconds / epoch:.2f}")
        shown.add_row(name, f"{len(opened):,}", *figures, method)
    Console(width=100).print(shown)


def photos(folder: Path, count: int) -> str:
    return f"imagefolder:{write_photos(folder / 'photos', count)}"


def digits(_folder: Path, _count: int) -> str:
    return "digits"


def table(_folder: Path, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Fifteen numbers; the class follows from one of them, a product, and noise."""
    random = np.random.default_rng(0)
    numbers_NV = random.normal(size=(count, 15)).astype(np.float32)
    scores_N = numbers_NV[:, 0] + numbers_NV[:, 1] * numbers_NV[:, 2] + random.normal(size=count)
    return numbers_NV, np.digitize(scores_N, (-2, -1, 1, 2))


# A function of a folder and a number of examples, the number, and the CPU seconds aimed at.
DATA: dict[str, tuple[Callable[[Path, int], Any], int, int]] = {
    "digits": (digits, 1_797, 3),
    "table": (table, 10_000, 3),
    "photos": (photos, 1_000, 20),
    "many photos": (photos, 10_000, 150),
}


if __name__ == "__main__":
    main()
