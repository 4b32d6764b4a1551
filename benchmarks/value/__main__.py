"""`make bench-selection-value`: train on subsets of clean and of dirty data, cell by cell.

Results are on disk as they come, and a stopped bench goes on where it was:

    python -m benchmarks.value --estimate
    python -m benchmarks.value --only setting=noise40 --only fraction=0.1 --jobs 2
    python -m benchmarks.value --gpu --jobs 16
    python -m benchmarks.value --tables
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.processes import ending_in_order
from benchmarks.value import gpu_runner, tables
from benchmarks.value.cells import (
    DECIDING,
    DECIDING_SETTINGS,
    FIELDS,
    PROXIES,
    RECIPES,
    SOFT,
    STRATEGIES,
    UNLABELLED,
    Cell,
    all_cells,
)
from benchmarks.value.settings import DATA, SETTINGS
from benchmarks.value.training import Results, run

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "results" / "value"
PAGE = ROOT / "docs" / "value.md"
# Per training, before one was measured.
_GUESS_SECONDS = 150.0


def main() -> int:
    arguments = _arguments()
    only: dict[str, list[str]] = defaultdict(list)
    for text in arguments.only:
        name, _, value = text.partition("=")
        if name not in FIELDS:
            raise SystemExit(f"--only {text}: {name!r} is not one of {', '.join(FIELDS)}.")
        only[name].append(value)
    planned = list(
        all_cells(
            data=arguments.data,
            settings=arguments.settings,
            fractions=arguments.fractions,
            strategies=arguments.strategies,
            proxies=arguments.proxies,
            recipes=arguments.recipes,
            models=arguments.models,
            seeds=range(arguments.seeds),
        )
    )
    wanted = [cell for cell in planned if cell.matches(only)]
    results = Results(arguments.folder)
    done = results.read()
    missing = [cell for cell in wanted if cell not in done]
    if arguments.estimate or arguments.tables:
        print(_estimate(results, missing, arguments.jobs))
    elif arguments.gpu:
        gpu_runner.run(missing, results, processes=arguments.jobs, seconds=arguments.seconds)
    elif arguments.jobs > 1:
        _spread(arguments.jobs)
    else:
        mine = {cell.pipeline for cell in missing}
        share = sorted(mine)[arguments.job :: arguments.of]
        run([cell for cell in missing if cell.pipeline in share], results)
    if not arguments.estimate and not arguments.of > 1:
        tables.write(PAGE, tables.page(results.read(), planned))
    return 0


def _estimate(results: Results, missing: Sequence[Cell], jobs: int) -> str:
    measured: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for cell, row in results.read().items():
        measured[cell.data, cell.recipe, cell.model].append(row["training_seconds"])
    seconds = sum(
        median(measured.get((cell.data, cell.recipe, cell.model), [_GUESS_SECONDS]))
        for cell in missing
    )
    return f"{len(missing)} trainings are missing: about {seconds / jobs / 3600:.1f} hours"


def _spread(jobs: int) -> None:
    """Let as many processes as there are jobs share the pipelines among them."""
    again = [sys.executable, "-m", "benchmarks.value", *sys.argv[1:], "--jobs", "1"]
    shares = [[*again, "--job", str(job), "--of", str(jobs)] for job in range(jobs)]
    children = [subprocess.Popen(share) for share in shares]
    try:
        for child in children:
            child.wait()
    finally:
        for child in children:
            child.terminate()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Value of subsets of clean and dirty data.")
    parser.add_argument("--data", nargs="+", choices=DATA, default=["cifar10-20k"])
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=DECIDING_SETTINGS)
    parser.add_argument("--fractions", nargs="+", type=float, default=[0.1, 0.05, 0.01, 0.3])
    strategies = [*STRATEGIES, *SOFT, *UNLABELLED]
    parser.add_argument("--strategies", nargs="+", choices=strategies, default=DECIDING)
    parser.add_argument("--proxies", nargs="+", choices=PROXIES, default=["auto"])
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=["converged"])
    parser.add_argument("--models", nargs="+", default=["resnet8"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--only", action="append", default=[], help="FIELD=VALUE, again for another value"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes, of one thread each")
    parser.add_argument("--job", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--of", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of results")
    parser.add_argument("--gpu", action="store_true", help="train many cells at once on a GPU")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="with --gpu, at most")
    parser.add_argument("--estimate", action="store_true", help="how long it would take")
    parser.add_argument("--tables", action="store_true", help="write the page and stop")
    return parser.parse_args()


if __name__ == "__main__":
    with ending_in_order():
        sys.exit(main())
