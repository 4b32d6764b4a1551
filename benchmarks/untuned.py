"""Value of subsets of data other than images, the first two of which no default was tuned on.

    pip install plotnine; apt-get update
    python -m benchmarks.untuned diamonds packages waves clusters [--seeds 5]

diamonds   53,940 diamonds of plotnine: the cut, one of five, from nine other columns
packages   one-line descriptions of Debian's packages in the ten largest sections: the section
waves      110,000 rows of twelve skewed columns: five classes by a product, a wave and a noise
clusters   110,000 rows of sixty clusters of very different sizes: five classes

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
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import lipt

Row = Sequence[str]
_FRACTIONS = (0.01, 0.05, 0.1, 0.3)
_NOISE = 0.4
_SECTIONS, _PACKAGES, _ROWS = 10, 12_000, 110_000
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


def waves() -> tuple[Row, list[Row], str]:
    """A head on the columns cannot express these classes; a network can."""
    random = np.random.default_rng(0)
    logs_NV = random.normal(size=(_ROWS, 12))
    scores_N = logs_NV[:, 0] * logs_NV[:, 1] + np.sin(2 * np.exp(logs_NV[:, 2])) + logs_NV[:, 3]
    scores_N += 0.3 * random.normal(size=_ROWS)
    return _table(np.exp(logs_NV), np.digitize(scores_N, (-1.5, -0.4, 0.6, 1.6)))


def clusters() -> tuple[Row, list[Row], str]:
    """Classes of clusters, some with a few rows."""
    random = np.random.default_rng(0)
    centres_C, labels_C = random.normal(size=(60, 20)) * 2, random.integers(5, size=60)
    drawn_N = random.choice(60, size=_ROWS, p=random.dirichlet(np.full(60, 0.5)))
    return _table(centres_C[drawn_N] + 1.5 * random.normal(size=(_ROWS, 20)), labels_C[drawn_N])


def _table(numbers_NV: NDArray[Any], labels_N: NDArray[Any]) -> tuple[Row, list[Row], str]:
    rows = zip(numbers_NV.astype(str).tolist(), labels_N.astype(str).tolist(), strict=True)
    header = [*(f"x{column}" for column in range(numbers_NV.shape[1])), "label"]
    return header, [[*numbers, label] for numbers, label in rows], "label=label"


DATA: dict[str, tuple[Callable[[], tuple[Row, list[Row], str]], int]] = {
    "diamonds": (diamonds, 3000),
    "packages": (packages, 1000),
    "waves": (waves, 3000),
    "clusters": (clusters, 3000),
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
