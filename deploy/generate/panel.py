"""Panel of the Grafana dashboard: one picture, and the expressions that are often asked for.

In an expression `@C` stands for the coordinators that are chosen at the top of the page, `@W` for
the workers, and `@R` for the range of a rate that Grafana thinks fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Panel:
    """One picture.

    Attributes:
        title: above it.
        text: what it shows, and what to look for.
        unit: Grafana's name of it.
        lines: expressions by the names of their lines, in which {{label}} is a label's value.
        width: of 24.
        stat: one number in place of a course in time.
        stacked: lines add up.
    """

    title: str
    text: str
    unit: str
    lines: dict[str, str]
    width: int = 8
    stat: bool = False
    stacked: bool = False


# A title, and what stands below it.
Row: TypeAlias = tuple[str, tuple[Panel, ...]]


def stat(title: str, text: str, unit: str, expression: str) -> Panel:
    """One number."""
    return Panel(title, text, unit, {title: expression}, width=3, stat=True)


def quantiles(name: str, by: str, *shares: float) -> dict[str, str]:
    """Quantiles of a coordinator's histogram by a label, a line for each share and value."""
    return {
        f"p{100 * share:g} {{{{{by}}}}}": f"histogram_quantile({share:g}, sum by (le, {by}) "
        f"(rate({name}_bucket{{@C}}[@R])))"
        for share in shares
    }


def mean(name: str, by: str, chosen: str = "@C") -> dict[str, str]:
    """A histogram's mean by a label since the start: such things are too rare for a rate."""
    return {
        f"{{{{{by}}}}}": f"sum by ({by}) ({name}_sum{{{chosen}}}) "
        f"/ (sum by ({by}) ({name}_count{{{chosen}}}) > 0)"
    }
