"""Tables of the bench: every row against class-balanced random, paired by seed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from benchmarks.value.cells import BASELINE, Cell
from benchmarks.value.settings import HELD_OUT
from lipt.trainer.comparison.outcomes import paired_difference

_HEADER = (
    *("setting", "kept", "strategy", "proxy", "accuracy", "to random (95% interval)"),
    *("wrong labels", "copies", "on the subset", "seeds"),
)
_INTRODUCTION = """# What a subset is worth, setting by setting

Main training on subsets of clean and of dirty data, at equal optimizer steps. Each row is compared
with class-balanced random subsets of the same size and the same seeds. A seed is one of the whole
pipeline: the changed data, theta*, the learners, the subset and main training. An interval needs
two seeds and is wide with few.

- `cifar10-20k`: 2,000 images of each class of cifar10-jpeg; tested on its 10,000.
- *Converged*: 2,500 steps of 64 for `cifar10-20k`, 6,000 for the others. *Short*: 1,000. All by the
  recipe of `lipt train`, with a cosine from 0.1.
- `auto` is the default strategy, with `training=short` where main training is short. *:soft* trains
  on the subset's soft labels with the recommended alpha; their gain is not the choice's merit.
- *Proxy* has the features that `auto` took. Some rows are of ten short learners, or of theta_p's
  last two feature maps beside the patches; the default has two longer learners and one map.
- *Oracle* knows which labels are right and which images are originals. *Everything* trains on all
  rows for as many steps, `resampled` on a random subset that is resampled every epoch.
- "Wrong labels" and "copies" (near-duplicates) are shares of the subset.

| setting | the data |
| --- | --- |
| `noise20`, `noise40` | 20%, 40% of the labels are random, a tenth of these right by chance |
| `asymmetric40` | 40% of the labels of five classes are those of a class that looks alike |
| `tail50` | the smallest class has a fiftieth of the largest |
| `duplicates` | a tenth of the images, and on average three near-duplicates each, by Zipf's law |
| `all-three` | the tail, then near-duplicates, then 40% of the labels random |

This command trains the missing results and writes this page. With a GPU, `--gpu --jobs 16` trains
sixteen subsets at once:

    make bench-selection-value ARGUMENTS='--only setting=noise40 --only fraction=0.1'

"""


def page(results: Mapping[Cell, Mapping[str, Any]], wanted: Sequence[Cell]) -> str:
    """The page in Markdown: a table for each data set, recipe and architecture."""
    parts = [_INTRODUCTION]
    groups: dict[tuple[str, str, str], list[Cell]] = defaultdict(list)
    for cell in results:
        groups[cell.data, cell.recipe, cell.model].append(cell)
    for (data, recipe, model), cells in sorted(groups.items(), key=lambda group: group[0][1]):
        held = " (held out of every decision)" if data in HELD_OUT else ""
        parts.append(f"## {data}, {recipe} main training of {model}{held}\n\n")
        parts.append("\n".join(_table(cells, results)) + "\n\n")
    parts.append(f"## Missing\n\n{_missing(wanted, results)}\n")
    return "".join(parts)


def write(path: Path, text: str) -> None:
    """Write the page where it has changed."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def _table(cells: Sequence[Cell], results: Mapping[Cell, Mapping[str, Any]]) -> Iterator[str]:
    yield f"| {' | '.join(_HEADER)} |"
    yield f"|{' --- |' * len(_HEADER)}"
    rows: dict[Cell, dict[int, Mapping[str, Any]]] = defaultdict(dict)
    for cell in cells:
        rows[replace(cell, seed=0)][cell.seed] = results[cell]
    settings = list(dict.fromkeys(cell.setting for cell in cells))
    for row in sorted(rows, key=lambda row: _order(row, settings, rows)):
        yield f"| {' | '.join(_line(row, rows))} |"


def _order(
    row: Cell, settings: list[str], rows: Mapping[Cell, Mapping[int, Mapping[str, Any]]]
) -> tuple[object, ...]:
    first = row.strategy != BASELINE
    accuracy = fmean(found["accuracy"] for found in rows[row].values())
    return settings.index(row.setting), row.fraction, first, -accuracy


def _line(row: Cell, rows: Mapping[Cell, Mapping[int, Mapping[str, Any]]]) -> Iterator[str]:
    found = rows[row]
    accuracies = _values(found, "accuracy")
    yield row.setting
    yield f"{row.fraction:.0%}" if not row.strategy.startswith("everything") else "all"
    yield row.strategy
    yield _proxy(row, found)
    spread = f" +- {100 * stdev(accuracies.values()):.1f}" if len(accuracies) > 1 else ""
    yield f"{fmean(accuracies.values()):.1%}{spread}"
    yield _difference(row, accuracies, rows)
    yield f"{fmean(_values(found, 'wrong').values()):.1%}"
    yield f"{fmean(_values(found, 'copies').values()):.1%}"
    yield f"{fmean(_values(found, 'subset_accuracy').values()):.1%}"
    yield str(len(found))


def _proxy(row: Cell, found: Mapping[int, Mapping[str, Any]]) -> str:
    """The proxy, and the features that `auto` took."""
    facts = [(result.get("facts") or {}).get("proxy") or {} for result in found.values()]
    taken = sorted({fact["features"] for fact in facts if fact.get("proxy") == "auto"})
    return f"auto: {' or '.join(taken)}" if taken else row.proxy or "-"


def _difference(
    row: Cell,
    accuracies: dict[int, float],
    rows: Mapping[Cell, Mapping[int, Mapping[str, Any]]],
) -> str:
    if row.strategy == BASELINE:
        return "-"
    baseline = _values(rows.get(row.baseline, {}), "accuracy")
    if not accuracies.keys() & baseline.keys():
        return "-"
    found = paired_difference(accuracies, baseline)
    if found is None:
        return "-"
    mean, low, high = (f"{100 * value:+.1f}" for value in (found.mean, found.low, found.high))
    return f"{mean} ({low} to {high})" if found.bounded else mean


def _values(found: Mapping[int, Mapping[str, Any]], name: str) -> dict[int, float]:
    return {seed: row[name] for seed, row in found.items()}


def _missing(wanted: Iterable[Cell], results: Mapping[Cell, Mapping[str, Any]]) -> str:
    """Number of planned trainings without a result, by table."""
    planned: dict[str, list[Cell]] = defaultdict(list)
    for cell in wanted:
        planned[f"{cell.data}, {cell.recipe} main training of {cell.model}"].append(cell)
    lines = [
        f"- {title}: {missing:,} of {len(cells):,} trainings"
        for title, cells in planned.items()
        if (missing := sum(cell not in results for cell in cells))
    ]
    return "\n".join(lines) or "Nothing of what was planned."
