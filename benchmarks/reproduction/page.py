"""The page: a row's outcomes over the seeds, how two rows compare, and the words beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from benchmarks.reproduction.cells import EVERYTHING, Cell, Claim, Row, Scale, Table
from lipt.trainer.comparison.outcomes import Difference, paired_difference

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
    """Measured cells of a row; None without any."""
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
        """Text under its table."""
        better, worse, points = self.claim.better, self.claim.worse, self.points
        text = f"**{better}** against **{worse}**: {points.mean:+.1f} points"
        if points.bounded:
            text += (
                f" (95% interval {points.low:+.1f} to {points.high:+.1f}, {points.num_seeds} seeds)"
            )
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
    means = {seed: fmean(by_seed[seed] for by_seed in differences.values()) for seed in seeds}
    points = paired_difference(means, dict.fromkeys(means, 0.0))
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


_PARTS = ("initialization", "sharding", "training", "merging", "warm-up")


def page(scales: Mapping[str, tuple[Scale, Mapping[str, Table], Found]]) -> str:
    """All tables of all scales that have results."""
    parts = [INTRODUCTION]
    for name, (scale, tables, found) in scales.items():
        parts.append(f"## Scale: {name}\n")
        if not found:
            parts.append(f"Nothing was measured yet: `benchmarks/paper.py all --scale {name}`.\n")
            continue
        parts.append(_conditions(scale, found))
        parts.extend(
            "\n".join(_section(table, of_whole_seeds(table, found))) for table in tables.values()
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


def _section(table: Table, found: Found) -> Iterator[str]:
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


INTRODUCTION = """# The paper's tables

Does LiPT (Ro et al., ICML 2023) reproduce, and how does it compare with simpler choices? A real
coordinator and real workers make every run and subset here, and the same main training follows for
every row of a table. Four rows are added to the paper's: class-balanced random, random resampled
every epoch, `auto`, and everything for as many optimizer steps.

A seed is one of the whole pipeline: theta*, shards, learners, soup, subset and main training.
Differences are paired by seed. In brackets: the paper's own figure (ResNet-18, CIFAR-10, 200
epochs). Seconds at the cpu scale were taken on a busy machine: read them as orders of magnitude.

    python benchmarks/paper.py B.1 --scale cpu --seeds 3 --jobs 2   # one table; resumes
    python benchmarks/paper.py all --scale gpu --minutes 8          # ResNet-18, in pieces
    python benchmarks/paper.py all --page                           # writes this page

Ordinary warm-ups are the strategies' option `pretraining`: `epochs:15` trains a model for 15
epochs on everything before it selects, `epochs:1x10` ten of them for one epoch each.
"""

NOTES: Mapping[str, str] = {
    "1": (
        "It does not: GraNd's subsets with re-selection reach none of the targets within the steps "
        "of this scale, with either pre-training. LiPT's pre-training takes a tenth of the time. "
        "Random subsets reach 95% of everything's accuracy about as fast as everything does. "
        "`auto` alone reaches all of it with both seeds, later. Other work slowed the trainings "
        "down unequally."
    ),
    "B.1": (
        "GraNd keeps the hardest examples. With either pre-training it stays below a random subset "
        "of its size, most of all at small fractions, as other top-k scores do. LiPT lowers the "
        "difference and the price: the warm-up trains ten models, LiPT's learners see a twentieth "
        "of the data."
    ),
    "B.2": (
        "GradMatch stops once its weighted gradients match the whole. That needs 5,775 and 5,783 "
        "of 50,000 examples after the ordinary warm-up, 5,701 and 5,721 on LiPT's model. Larger "
        "fractions are the same subset. LiPT's is the better one with both seeds."
    ),
    "2": (
        "GLISTER's subsets, too, are below random ones of their size here. The difference "
        "between theta_p and an untrained model is smaller than between seeds, and 15 epochs of "
        "warm-up are worst."
    ),
    "3": (
        "Augmentation of the learners adds at both fractions. Pruning adds without "
        "augmentation, and costs accuracy with it: at 70%, all together are no better than "
        "merging alone."
    ),
    "C": (
        "The plain mean of all learners does as well. The greedy soup's gain on the validation "
        "split, 24.7% instead of 22.9%, does not change the accuracy on GraNd's subsets."
    ),
    "D": (
        "No difference between the three is shown here: the paper's order appears with the first "
        "seed alone."
    ),
    "fig-n": (
        "theta_p gets better with every learner more, from 22.8% to 27.1% on the validation split; "
        "what GraNd chooses by it does not. It is best at 10 and worse at 50, as in the paper, but "
        "by less than the seeds differ."
    ),
    "fig-M": (
        "theta_p gains fourteen points on the validation split between 1 and 5 minibatches, and "
        "what GraNd chooses by it gains nothing."
    ),
    "fig-K": (
        "theta_p rises from 12.9% to 35.5% on the validation split between 1 and 40 passes. What "
        "GraNd chooses is best at 10, as in the paper, but by less than the seeds differ."
    ),
}
