"""Outcomes: a row's results over the seeds, and how two rows of a table compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from benchmarks.reproduction.cells import Cell
from benchmarks.reproduction.table import Claim, Row, Table
from lipt.trainer.comparison.intervals import Difference, paired_difference

Found = Mapping[Cell, Mapping[str, Any]]


def of_whole_seeds(table: Table, found: Found) -> Found:
    """The results of the seeds that a table has all of, so that its rows are of the same ones.

    Where it has none whole, those of all seeds.
    """
    seeds = {cell.seed for cell in found}
    whole = {seed for seed in seeds if all(cell in found for cell in table.cells([seed]))}
    return {cell: row for cell, row in found.items() if cell.seed in whole} if whole else found


@dataclass(frozen=True)
class Outcome:
    """A row's results at one fraction, by seed."""

    by_seed: Mapping[int, Mapping[str, Any]]

    @property
    def accuracies(self) -> list[float]:
        """On the test set, in percent."""
        return self.values("accuracy", 100.0)

    def values(self, name: str, factor: float = 1.0) -> list[float]:
        """One field, seed by seed."""
        return [factor * float(row[name]) for row in self.by_seed.values()]

    def mean(self, name: str) -> float:
        """One field's mean."""
        return fmean(self.values(name))


def outcome(table: Table, row: Row, fraction: float, found: Found) -> Outcome | None:
    """What is there of a row; None where nothing is."""
    seeds = sorted({cell.seed for cell in found})
    cells = {seed: table.cell(row, fraction, seed) for seed in seeds}
    by_seed = {seed: found[cell] for seed, cell in cells.items() if cell in found}
    return Outcome(by_seed) if by_seed else None


def spread(values: Sequence[float], digits: int = 1) -> str:
    """A mean, and the standard deviation where there are several."""
    deviation = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{deviation}"


@dataclass(frozen=True)
class Compared:
    """A claim as it was measured.

    points: mean difference over fractions and seeds, in points of accuracy, and its interval
        over seeds.
    num_above, num_fractions: at how many fractions the mean is above, of how many.
    in_paper: the paper's mean difference over the same fractions; None where it has no figures.
    """

    claim: Claim
    points: Difference
    num_above: int
    num_fractions: int
    in_paper: float | None

    @property
    def sentence(self) -> str:
        """What is said of it under its table."""
        better, worse, points = self.claim.better, self.claim.worse, self.points
        text = f"**{better}** against **{worse}**: {points.mean:+.1f} points"
        if points.bounded:
            text += f" (95% interval {points.low:+.1f} to {points.high:+.1f}, {points.basis})"
        if self.num_fractions > 1:
            text += f" in the mean, above at {self.num_above} of {self.num_fractions} fractions"
        if self.in_paper is not None:
            text += f"; in the paper {self.in_paper:+.1f}"
        return f"{text}. {self._verdict}"

    @property
    def _verdict(self) -> str:
        if not self.points.bounded:
            return "One seed decides nothing."
        if self.points.low > 0:
            return "The paper's ordering is reproduced."
        if self.points.high < 0:
            return "The paper's ordering is **not** reproduced: it is the other way round."
        return "The paper's ordering is neither shown nor refuted."


def compared(table: Table, claim: Claim, found: Found) -> Compared | None:
    """A claim of the paper's, by what was measured; None where nothing was."""
    better, worse = table.row(claim.better), table.row(claim.worse)
    if better is None or worse is None:
        return None
    differences: dict[float, dict[int, float]] = {}
    for fraction in table.fractions:
        own, other = (outcome(table, row, fraction, found) for row in (better, worse))
        both = set() if not own or not other else own.by_seed.keys() & other.by_seed.keys()
        if own and other and both:
            differences[fraction] = {
                seed: 100 * (own.by_seed[seed]["accuracy"] - other.by_seed[seed]["accuracy"])
                for seed in both
            }
    if not differences:
        return None
    # Seeds that have all of the fractions: each is one pair.
    seeds = set.intersection(*(set(by_seed) for by_seed in differences.values()))
    means = {(seed, 0): fmean(by_seed[seed] for by_seed in differences.values()) for seed in seeds}
    points = paired_difference(means, dict.fromkeys(means, 0.0), resolution=1.0)
    if points is None:
        return None
    in_paper = [
        better.paper[fraction] - worse.paper[fraction]
        for fraction in differences
        if better.paper and worse.paper
    ]
    num_above = sum(fmean(by_seed.values()) > 0 for by_seed in differences.values())
    paper = fmean(in_paper) if in_paper else None
    return Compared(claim, points, num_above, len(differences), paper)
