"""The paper's tables and figures, measured through the product's own path.

    python benchmarks/paper.py B.1 --scale cpu --seeds 3 --jobs 2
    python benchmarks/paper.py all --scale gpu --minutes 8 --jobs 4    # until none is missing

A real coordinator and real workers make the runs and choose the subsets; main training is the
same for all rows. Every result is on disk as it comes: a stopped bench goes on where it was. The
page is docs/results/paper.md. Tables: 1, 2, 3, B.1, B.2, C, D, fig-n, fig-M, fig-K, all.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Run as a file, so that the other files of the bench are found.
sys.path.insert(0, str(ROOT))

from benchmarks.processes import ending_in_order  # noqa: E402
from benchmarks.reproduction.cells import SCALES, Cell, Scale  # noqa: E402
from benchmarks.reproduction.page import page  # noqa: E402
from benchmarks.reproduction.tables import tables  # noqa: E402
from benchmarks.reproduction.training import Results, run, serving  # noqa: E402

FOLDER = ROOT / "docs" / "results" / "paper"


def main() -> int:
    arguments = _arguments()
    scale = SCALES[arguments.scale]
    known = tables(scale)
    names = list(known) if "all" in arguments.tables else arguments.tables
    wanted: dict[Cell, None] = {}
    for seed in range(arguments.seeds):
        for name in names:
            wanted |= dict.fromkeys(known[name].cells([seed]))
    results = Results(arguments.folder / f"{scale.name}.jsonl")
    done = results.read()
    missing = [cell for cell in wanted if cell not in done]
    if arguments.address:
        work = arguments.work / scale.name
        return run(missing, scale, arguments.address, results, work, minutes=arguments.minutes)
    print(f"{len(missing)} of {len(wanted)} trainings are missing", flush=True)
    if missing and not arguments.page:
        _spread(scale, arguments)
    _write_page(arguments.folder)
    return 0


def _write_page(folder: Path) -> None:
    scales = {}
    for name, scale in SCALES.items():
        found = Results(folder / f"{name}.jsonl").read()
        if found or name != "tiny":
            scales[name] = (scale, tables(scale), found)
    folder.with_suffix(".md").write_text(page(scales), encoding="utf-8")


def _spread(scale: Scale, arguments: argparse.Namespace) -> None:
    """Let as many processes as there are jobs take cells, at one coordinator."""
    with serving(scale, arguments.work / scale.name) as address:
        again = [sys.executable, __file__, *sys.argv[1:], "--address", address]
        children = [subprocess.Popen(again) for _ in range(arguments.jobs)]
        try:
            for child in children:
                child.wait()
        finally:
            for child in children:
                child.terminate()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The paper's tables and figures, measured.")
    parser.add_argument("tables", nargs="+", metavar="TABLE", help="which, or all")
    parser.add_argument("--scale", choices=SCALES, default="cpu")
    parser.add_argument("--seeds", type=int, default=3, help="of the whole pipeline")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument(
        "--minutes", type=float, default=1e6, help="after so many trainings are paused"
    )
    parser.add_argument("--page", action="store_true", help="write the page and stop")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of results")
    parser.add_argument("--work", type=Path, default=ROOT / ".cache" / "paper", help="of runs")
    parser.add_argument("--address", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    with ending_in_order():
        sys.exit(main())
