"""Searching hyper-parameters on a subset: does it order configurations as all of the data does?

Every configuration is trained on all rows, and for a quarter of the steps on a chosen subset
and on a random one. What counts is the rank correlation of the two orders, and what is lost
where all rows are given the configuration that is best on the subset.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

from benchmarks.value.cells import SEARCH, SEARCH_STEPS, STEPS_OF_EVERYTHING, Cell
from lipt.common.imports import import_extra

_HEADER = (
    *("data", "setting", "kept", "searched on", "steps", "rank correlation"),
    *("all rows, with its best", "all rows, with their best", "seeds"),
)
_INTRODUCTION = """## Searching hyper-parameters on a subset

{count} configurations (learning rate, weight decay), each trained on all rows and, for fewer
steps, on a subset; Spearman's correlation of the two orders, and the accuracy on all rows of the
configuration that the subset likes best, the mean over seeds.

"""
# Accuracies by configuration: on a subset, and on all rows.
Pair = tuple[Mapping[str, float], Mapping[str, float]]


def section(results: Mapping[Cell, Mapping[str, Any]]) -> str:
    """A table in Markdown, or nothing where nothing was searched to the end."""
    searches: dict[Cell, dict[str, float]] = defaultdict(dict)
    for cell, row in results.items():
        if cell.recipe in SEARCH:
            searches[replace(cell, recipe="search")][cell.recipe] = row["accuracy"]
    done = {cell: found for cell, found in searches.items() if found.keys() == SEARCH.keys()}
    on_everything = {
        _place(cell): found for cell, found in done.items() if cell.strategy == "everything"
    }
    pairs: dict[Cell, list[Pair]] = defaultdict(list)
    for cell, found in done.items():
        if cell.strategy != "everything" and _place(cell) in on_everything:
            pairs[replace(cell, seed=0)].append((found, on_everything[_place(cell)]))
    if not pairs:
        return ""
    lines = [f"| {' | '.join(_HEADER)} |", f"|{' --- |' * len(_HEADER)}"]
    lines += [f"| {' | '.join(_line(cell, found))} |" for cell, found in pairs.items()]
    return _INTRODUCTION.format(count=len(SEARCH)) + "\n".join(lines) + "\n\n"


def rank_correlation(pair: Pair) -> float:
    """Spearman's, of the same configurations."""
    stats = import_extra("scipy.stats", package="scipy", extra="report", needed_for="ranks")
    names = sorted(pair[0])
    first, second = ([accuracies[name] for name in names] for accuracies in pair)
    return float(stats.spearmanr(first, second).statistic)


def chosen_by(pair: Pair) -> float:
    """The accuracy on all rows of the configuration that is best on the subset."""
    on_subset, on_everything = pair
    return on_everything[max(on_subset, key=on_subset.__getitem__)]


def _place(cell: Cell) -> tuple[str, str, str, int]:
    return cell.data, cell.setting, cell.model, cell.seed


def _line(cell: Cell, pairs: list[Pair]) -> Iterator[str]:
    yield cell.data
    yield cell.setting
    yield f"{cell.fraction:.0%}"
    yield cell.strategy
    yield f"{SEARCH_STEPS:,} of {STEPS_OF_EVERYTHING:,}"
    yield f"{fmean(map(rank_correlation, pairs)):.2f}"
    yield f"{fmean(map(chosen_by, pairs)):.1%}"
    yield f"{fmean(max(on_everything.values()) for _, on_everything in pairs):.1%}"
    yield str(len(pairs))
