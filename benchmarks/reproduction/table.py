"""Table: rows of cells, the paper's own figures beside them, and what the paper says of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.reproduction.cells import Cell


@dataclass(frozen=True)
class Row:
    """A row of a table.

    cell: with fraction and seed left open.
    paper: the paper's accuracy by fraction, in percent.
    fractions: in place of the table's own.
    x: a figure's place on its axis.
    """

    label: str
    cell: Cell
    paper: Mapping[float, float] | None = None
    fractions: tuple[float, ...] | None = None
    x: int = 0


@dataclass(frozen=True)
class Claim:
    """Two rows, by their labels, of which the paper has the first above the second."""

    better: str
    worse: str


@dataclass(frozen=True)
class Table:
    """One of the paper's.

    question: what it asks, in a sentence.
    axis: of a figure, what its rows are along.
    targets: whether it asks for seconds to an accuracy.
    claims: what the paper's figures say.
    """

    name: str
    title: str
    question: str
    fractions: tuple[float, ...]
    rows: tuple[Row, ...]
    axis: str = ""
    targets: bool = False
    claims: tuple[Claim, ...] = ()

    def row(self, label: str) -> Row | None:
        """The row of that name, where this scale has it."""
        return next((row for row in self.rows if row.label == label), None)

    def cells(self, seeds: Sequence[int]) -> Iterator[Cell]:
        """Seed by seed, so that a stopped bench has every row."""
        for seed in seeds:
            for row in self.rows:
                for fraction in row.fractions or self.fractions:
                    yield self.cell(row, fraction, seed)

    def cell(self, row: Row, fraction: float, seed: int) -> Cell:
        """The cell of a row."""
        return replace(row.cell, fraction=fraction, seed=seed)
