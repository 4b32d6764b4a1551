"""`make bench-pretrain`: seconds from "run start" to theta_p and to a subset, and what it replaces.

LiPT by real processes with 1 and 2 workers, and the ordinary warm-ups (GraNd's ten runs of one
epoch, 15 epochs) by the same coordinator, one after another on this machine, each in a fresh state
directory. Results are on disk as they come, and a stopped bench goes on where it was:

    python -m benchmarks.pretraining_price [--rounds 1] [--only epochs:15]
    python -m benchmarks.pretraining_price --scale tiny --results /tmp/price.jsonl
    python -m benchmarks.pretraining_price --tables
"""

from __future__ import annotations

import argparse
import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from benchmarks.__main__ import cores
from benchmarks.pretraining_price.measurements import (
    SCALES,
    Cell,
    Row,
    add_row,
    cells,
    measure,
    read_rows,
)
from benchmarks.pretraining_price.tables import markdown, printed, write_section
from benchmarks.processes import ending_in_order
from lipt.common.process.devices import versions

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results" / "pretraining_price.jsonl"
PAGE = ROOT / "docs" / "benchmarks.md"


def main() -> None:
    parser = argparse.ArgumentParser(description="The price of pre-training.")
    parser.add_argument("--scale", choices=list(SCALES), default="full")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", action="append", help="lipt, or a warm-up such as epochs:15")
    parser.add_argument("--results", type=Path, default=RESULTS, help="a file of JSON lines")
    parser.add_argument("--work", type=Path, help="where state and logs are (default: temporary)")
    parser.add_argument("--tables", action="store_true", help="measure nothing")
    given = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="lipt-price-") as folder, ending_in_order():
        for cell in () if given.tables else cells(given.scale, given.rounds):
            known = cell in read_rows(given.results)
            if not known and (not given.only or cell.pretraining in given.only):
                console.print(f"{cell.name} ...")
                add_row(given.results, cell, measured(cell, given.work or Path(folder)))
    rows = read_rows(given.results)
    for table in printed(rows, given.scale):
        console.print(table)
    # Small scales are not worth a page, and results elsewhere are trials.
    if given.scale == "full" and given.results == RESULTS and rows:
        write_section(PAGE, markdown(rows, given.scale))


def measured(cell: Cell, work: Path) -> Row:
    before, began = os.getloadavg()[0], datetime.now(UTC)
    price = measure(cell, work)
    loads = (before, os.getloadavg()[0])
    return Row(price, cores(), versions(), loads, began.isoformat(timespec="seconds"))


if __name__ == "__main__":
    main()
