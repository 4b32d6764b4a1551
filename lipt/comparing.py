"""Comparison of one call: what came of every strategy, as a value that shows itself as a table."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from lipt.trainer.comparison import table
from lipt.trainer.comparison.outcomes import Outcome
from lipt.trainer.comparison.trial import Trial


@dataclass(frozen=True)
class Comparison:
    """Strategies against what people do instead, at equal steps.

    Attributes:
        outcomes: one per strategy and fraction, over all seeds.
        trials: every training.
        verdict: whether a strategy beat random, in a sentence.
    """

    outcomes: tuple[Outcome, ...]
    trials: tuple[Trial, ...]
    verdict: str

    def __str__(self) -> str:
        return "\n".join([*table.plain(self.outcomes), "", self.verdict])

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        head = "".join(f"<th>{escape(name)}</th>" for name in table.HEADER)
        rows = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in table.cells(row)) + "</tr>"
            for row in self.outcomes
        )
        return f"<table><tr>{head}</tr>{rows}</table><p>{escape(self.verdict)}</p>"
