"""Page of the bench: what reproduces, table by table, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from benchmarks.reproduction.notes import INTRODUCTION, NOTES
from benchmarks.reproduction.outcomes import (
    Found,
    Outcome,
    compared,
    of_whole_seeds,
    outcome,
    spread,
)
from benchmarks.reproduction.reaching import reaching_lines
from benchmarks.reproduction.scales import Scale
from benchmarks.reproduction.table import Row, Table

_PARTS = ("initialization", "sharding", "training", "merging", "warm-up")


def page(scales: Mapping[str, tuple[Scale, Mapping[str, Table], Found]], plots: Path) -> str:
    """All tables of all scales that have results.

    Args:
        scales: by name, with what was measured at each.
        plots: the folder of `plots`' pictures, beside the page.
    """
    parts = [INTRODUCTION]
    for name, (scale, tables, found) in scales.items():
        parts.append(f"## Scale: {name}\n")
        if not found:
            parts.append(f"Nothing was measured yet: `benchmarks/paper.py all --scale {name}`.\n")
            continue
        parts.append(_conditions(scale, found))
        parts.extend(
            "\n".join(
                _section(table, of_whole_seeds(table, found), plots / f"{name}-{table.name}.svg")
            )
            for table in tables.values()
        )
    return "\n".join(parts)


def _conditions(scale: Scale, found: Found) -> str:
    rows = list(found.values())
    machines = ", ".join(sorted({row["machine"] for row in rows}))
    torches = ", ".join(sorted({row["torch"] for row in rows}))
    commits = ", ".join(f"`{commit}`" for commit in dict.fromkeys(row["commit"] for row in rows))
    seeds = sorted({cell.seed for cell in found})
    recipe = ", ".join(f"{name} {value}" for name, value in scale.recipe.items())
    return (
        f"`{scale.model}`; main training of every row: {recipe}, the rest as `lipt train` has it. "
        f"{len(found)} trainings, pipeline seeds {', '.join(map(str, seeds))}, of which a table "
        f"shows those that it has all rows of; {machines}, torch "
        f"{torches}, commits {commits}. Seconds are wall-clock on a machine that did other work as "
        f"well, at a load of {fmean(row['load'] for row in rows):.1f} in the mean.\n"
    )


def _section(table: Table, found: Found, plot: Path) -> Iterator[str]:
    yield f"### {table.title}\n"
    yield f"{table.question} `benchmarks/paper.py {table.name}`\n"
    lines = list(_accuracies(table, found))
    if not lines:
        yield "Not measured yet.\n"
        return
    for claim in table.claims:
        if said := compared(table, claim, found):
            yield f"- {said.sentence}"
    yield f"\n{NOTES.get(table.name, '')}\n"
    yield from lines
    if table.targets:
        yield from reaching_lines(table, found)
    if plot.exists():
        yield f"\n![{table.title}]({plot.parent.name}/{plot.name})\n"
    yield "\nWhat choosing cost, in the mean over seeds and fractions:\n"
    yield from _costs(table, found)
    yield ""


def _accuracies(table: Table, found: Found) -> Iterator[str]:
    """A column for each fraction: accuracy in percent, seeds, and the paper's."""
    fractions = sorted({*table.fractions, *(f for row in table.rows for f in row.fractions or ())})
    rows = [(row, _line(table, row, fractions, found)) for row in table.rows]
    if not any(line for _, line in rows):
        return
    head = " | ".join(f"{fraction:.0%}" for fraction in fractions)
    yield f"| accuracy, % | {head} | seeds |"
    yield f"| --- |{' ---: |' * (len(fractions) + 1)}"
    for row, line in rows:
        yield f"| {row.label} | {line or ' | '.join('-' * (len(fractions) + 1))} |"


def _line(table: Table, row: Row, fractions: Sequence[float], found: Found) -> str:
    cells, counts = [], []
    for fraction in fractions:
        own = outcome(table, row, fraction, found)
        if own:
            counts.append(len(own.by_seed))
        text = spread(own.accuracies) if own else "-"
        if row.paper and fraction in row.paper:
            text += f" ({row.paper[fraction]:.1f})"
        cells.append(text)
    if not counts:
        return ""
    seeds = str(min(counts)) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    return " | ".join([*cells, seeds])


def _costs(table: Table, found: Found) -> Iterator[str]:
    yield (
        "| | pre-training, s | of which | selection, its turn in the queue included, s | "
        "main training, s | sent, MB | theta_p on the validation split (theta*, mean learner) |"
    )
    yield "| --- | ---: | --- | ---: | ---: | ---: | --- |"
    for row in table.rows:
        outcomes = [
            own
            for fraction in row.fractions or table.fractions
            if (own := outcome(table, row, fraction, found))
        ]
        if outcomes:
            yield f"| {row.label} | {' | '.join(_cost(outcomes))} |"


def _cost(outcomes: Sequence[Outcome]) -> Iterator[str]:
    rows = [row for own in outcomes for row in own.by_seed.values()]
    yield f"{fmean(row['pretraining_seconds'] for row in rows):.0f}"
    stages = [row["stages"] for row in rows if row["stages"]]
    parts = [
        f"{part} {fmean(stage[part] for stage in stages):.1f}"
        for part in _PARTS
        if stages and part in stages[0]
    ]
    yield ", ".join(parts) or "-"
    yield f"{fmean(row['selection_seconds'] for row in rows):.1f}"
    yield f"{fmean(row['training_seconds'] for row in rows):.0f}"
    yield f"{fmean(row['bytes_sent'] for row in rows) / 1e6:.1f}"
    soups = [row["soup"] for row in rows if row["soup"]]
    if not soups:
        yield "-"
        return
    whole, start, learner = (
        fmean(soup[name] for soup in soups) for name in ("soup", "initial", "mean_learner")
    )
    yield f"{whole:.1%} ({start:.1%}, {learner:.1%})"
