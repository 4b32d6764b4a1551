"""Common options: what several strategies let the user choose, described once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from lipt.core.selection.gradients.vectors import SpaceName
from lipt.core.selection.solvers.neighbours import SearchName
from lipt.core.selection.solvers.representatives import PrecisionName, SolverName
from lipt.core.selection.strategy import FEATURES, SIGNALS, Need

Space = Annotated[SpaceName, "compare features, or last-layer gradients"]
Solver = Annotated[
    SolverName, "lazy is exact; auto is lazy where all pairs fit into memory, else partition"
]
Partitions = Annotated[
    int,
    Field(ge=0, le=65_536),
    "random parts to choose in first, in two rounds; 1 is exact, 0 is as memory needs",
]
Search = Annotated[
    SearchName, "how neighbours are found; auto is exact up to 100,000 examples, then approximate"
]
Precision = Annotated[
    PrecisionName, "how finely similarities are stored; auto is the finest that is fast"
]
Epsilon = Annotated[
    float, Field(gt=0, lt=1), "what the stochastic solver may lose of its guarantee"
]


def needs_of_space(options: Mapping[str, Any]) -> frozenset[Need]:
    """Errors only where gradients are compared."""
    return FEATURES if options["space"] == "features" else SIGNALS
