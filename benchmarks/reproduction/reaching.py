"""Reaching a target: seconds until an accuracy, everything before it included."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import Any

from benchmarks.reproduction.cells import EVERYTHING
from benchmarks.reproduction.outcomes import Found, outcome, spread
from benchmarks.reproduction.table import Table

# Of what training on everything ends with.
_SHARES = (0.9, 0.95, 1.0)


def reaching_lines(table: Table, found: Found) -> Iterator[str]:
    """A table of seconds to each target; nothing where everything was not trained on."""
    everything = next(row for row in table.rows if row.cell.strategy == EVERYTHING)
    final = outcome(table, everything, 1.0, found)
    if final is None:
        return
    whole = fmean(final.accuracies) / 100
    targets = [share * whole for share in _SHARES]
    yield (
        f"\nSeconds until a look at the test set first found a target, everything before it "
        f"included; targets are shares of the {whole:.1%} that training on everything ends "
        "with.\n"
    )
    head = " | ".join(
        f"to {target:.1%} ({share:.0%})" for share, target in zip(_SHARES, targets, strict=True)
    )
    yield f"| | data | before training | {head} |"
    yield f"| --- | ---: | ---: |{' ---: |' * len(targets)}"
    for row in table.rows:
        fraction = (row.fractions or table.fractions)[0]
        own = outcome(table, row, fraction, found)
        if own is None:
            continue
        before = [before_training(result) for result in own.by_seed.values()]
        cells = []
        for target in targets:
            reached = [seconds_to(result, target) for result in own.by_seed.values()]
            times = [seconds for seconds in reached if seconds is not None]
            text = spread(times, 0) if times else "never"
            if times and len(times) < len(reached):
                text += f" ({len(times)} of {len(reached)})"
            cells.append(text)
        yield f"| {row.label} | {fraction:.0%} | {spread(before, 0)} | {' | '.join(cells)} |"


def before_training(result: Mapping[str, Any]) -> float:
    """Seconds of pre-training and of the first selection."""
    return float(result["pretraining_seconds"] + result["selection_seconds"])


def seconds_to(result: Mapping[str, Any], target: float) -> float | None:
    """When a look first found this accuracy; None where none did."""
    for _, seconds, accuracy in result["looks"]:
        if accuracy >= target:
            return before_training(result) + float(seconds)
    return None
