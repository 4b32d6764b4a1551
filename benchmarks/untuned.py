"""Value of subsets of data that no default was tuned on.

    pip install plotnine; apt-get update
    python -m benchmarks.untuned diamonds packages [--seeds 5]

diamonds   53,940 diamonds of plotnine: the cut, one of five, from nine other columns
packages   one-line descriptions of Debian's packages in the ten largest sections: the section

A tenth is held out as a test. Both are measured as they are, and with 40% of the training labels
random.
"""

from __future__ import annotations

import argparse
import csv
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import lipt

Row = Sequence[str]
_FRACTIONS = (0.01, 0.05, 0.1, 0.3)
_NOISE = 0.4
_SECTIONS, _PACKAGES = 10, 12_000
_NEEDED = {"Description", "Section"}
_FIELD = re.compile(r"^(Description|Section): (.*)$", re.MULTILINE)


def diamonds() -> tuple[Row, list[Row], str]:
    """Header, rows and options of plotnine's table; plotnine itself is not imported."""
    found = find_spec("plotnine")
    if found is None or found.origin is None:
        raise SystemExit("diamonds lie inside plotnine: pip install plotnine")
    path = Path(found.origin).parent / "data" / "diamonds.csv"
    with path.open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    place = header.index("cut")
    # The label last.
    return (
        [*header[:place], *header[place + 1 :], "label"],
        [[*row[:place], *row[place + 1 :], row[place]] for row in rows],
        "label=label",
    )


def packages() -> tuple[Row, list[Row], str]:
    """Descriptions and sections of the packages that apt knows."""
    listed = subprocess.run(
        ["apt-cache", "dumpavail"],
        capture_output=True,
        text=True,
        check=True,
    )
    entries = [dict(_FIELD.findall(entry)) for entry in listed.stdout.split("\n\n")]
    found = [(it["Description"], it["Section"]) for it in entries if it.keys() >= _NEEDED]
    largest = Counter(section for _, section in found).most_common(_SECTIONS)
    sections = {name for name, _ in largest}
    rows = [row for row in found if row[1] in sections]
    if len(rows) < _PACKAGES:
        raise SystemExit(f"apt knows {len(rows)} packages: apt-get update")
    order = np.random.default_rng(0).permutation(len(rows))[:_PACKAGES]
    return ["text", "label"], [rows[row] for row in order], "text=text&label=label"


DATA: dict[str, tuple[Callable[[], tuple[Row, list[Row], str]], int]] = {
    "diamonds": (diamonds, 3000),
    "packages": (packages, 1000),
}


def written(folder: Path, name: str, *, noisy: bool) -> tuple[str, str]:
    """Sources of the training data and the test."""
    header, rows, options = DATA[name][0]()
    random = np.random.default_rng(0)
    order = random.permutation(len(rows)).tolist()
    test, train = order[: len(rows) // 10], order[len(rows) // 10 :]
    labels = sorted({row[-1] for row in rows})
    drawn, hit = random.integers(len(labels), size=len(rows)), random.random(len(rows)) < _NOISE
    sources = []
    for part, places in (("train", train), ("test", test)):
        path = folder / f"{part}.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(header)
            for place in places:
                label = rows[place][-1]
                if noisy and part == "train" and hit[place]:
                    label = labels[drawn[place]]
                writer.writerow([*rows[place][:-1], label])
        sources.append(f"csv:{path}?{options}")
    return sources[0], sources[1]


def main() -> None:
    parser = argparse.ArgumentParser(description="Value on data that no default was tuned on.")
    parser.add_argument("data", nargs="+", choices=list(DATA))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--fractions", nargs="+", type=float, default=_FRACTIONS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    console = Console(width=110)
    for name in arguments.data:
        for noisy in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                train, test = written(Path(folder), name, noisy=noisy)
                compared = lipt.compare(
                    train,
                    test,
                    fractions=arguments.fractions,
                    baselines=("uniform_per_class", "everything"),
                    seeds=arguments.seeds,
                    recipe={"steps": DATA[name][1], "batch_size": 64},
                    soft_labels=True,
                    progress=False,
                )
            title = f"{name}, {'40% of the labels random' if noisy else 'clean'}"
            shown = Table("strategy", "kept", "accuracy", title=title)
            for one in compared.outcomes:
                accuracy = f"{one.mean_accuracy:.1%} +- {100 * one.std_accuracy:.1f}"
                shown.add_row(one.strategy, f"{one.fraction:.0%}", accuracy)
            console.print(shown)


if __name__ == "__main__":
    main()
