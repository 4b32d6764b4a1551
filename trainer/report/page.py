"""Page of a report: one HTML file, no network, everything escaped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from lipt.trainer.comparison import table
from lipt.trainer.comparison.baselines import EVERYTHING
from lipt.trainer.comparison.outcomes import Outcome
from lipt.trainer.diagnosis.findings import fit_text
from lipt.trainer.report.plot import (
    HEIGHT,
    MOST_SUSPECTS,
    WIDTH,
    Layer,
    Plot,
    Point,
    accuracy_against_cost,
    accuracy_over_time,
    interval_scale,
    open_templates,
    soup_by_learner,
)
from lipt.trainer.report.report import NUM_UNFOLDED, Report, Thumbnail
from lipt.trainer.views import LearnerView, RunView


@dataclass(frozen=True)
class Date:
    """What happened when.

    iso: for machines.
    after: how long it took; empty where that says nothing.
    """

    what: str
    text: str
    iso: str
    after: str = ""


def dates_of(run: RunView, made_at: datetime | None) -> tuple[Date, ...]:
    """Those that are known, in the order of time."""
    began, ended = run.created_at, run.ended_at
    after = "" if began is None or ended is None else f" after {duration(ended - began)}"
    found = (
        ("started", began, ""),
        (str(run.state), ended, after),
        ("this page was made", made_at, ""),
    )
    return tuple(
        Date(what, _text(when), when.astimezone(UTC).isoformat(timespec="seconds"), after)
        for what, when, after in found
        if when is not None
    )


def duration(length: timedelta) -> str:
    """A time in two units at most: "42 s", "3 min 5 s", "2 h 10 min"."""
    minutes, seconds = divmod(round(length.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def _text(when: datetime) -> str:
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


# What a pointer on a column's head tells.
_HELP = {
    "accuracy": "On the test set, mean and standard deviation over the seeds",
    "to random (95% interval)": "Points above the better kind of random, within each seed",
    "on the subset": "Accuracy on the examples that were trained on",
    "levelled off": "Whether accuracy on the subset had stopped rising",
    "total time": "Pre-training, selection and main training",
    "sent": "Between the coordinator and its workers",
}


@dataclass(frozen=True)
class DrawnMap:
    """The map as a subset's story draws it.

    suspects: the worst, which are ringed, each with the class that it looks like.
    """

    layers: tuple[Layer, ...]
    suspects: tuple[tuple[Point, str], ...]
    chosen: frozenset[int]
    num_chosen: int
    num_others: int
    width: int = WIDTH
    height: int = HEIGHT


def render(report: Report) -> str:
    """The page.

    Raises:
        MissingExtraError: jinja2 is not installed.
    """
    environment = open_templates("lipt report")
    run, rows = report.run, report.outcomes
    learners = in_soup_order(run.learners)
    tried = [learner.ingredient for learner in learners if learner.ingredient is not None]
    page: str = environment.get_template("page.html").render(
        report=report,
        run=run,
        soup=run.soup,
        soup_plot=soup_by_learner(tried) if tried else None,
        costs=run.costs,
        learners=learners,
        tried=learners[: len(tried)],
        header=table.header(rows),
        cells=table.cells,
        rows=rows,
        interval=interval_scale(rows),
        courses=_courses(rows),
        notes=table.notes(rows),
        instead_header=table.INSTEAD_HEADER,
        instead=table.instead(rows),
        series=dict.fromkeys(row.label for row in rows),
        plot=accuracy_against_cost(rows) if rows else None,
        help=_HELP,
        dates=dates_of(run, report.made_at),
        maps=_maps(report),
        chosen_by=_chosen_by(report),
        fit=fit_text,
        unfolded=unfolded,
        config=json.dumps(run.config.model_dump(mode="json"), indent=2),
        recipe=json.dumps(report.comparison["recipe"], indent=2) if report.comparison else "",
    )
    return page


def _courses(rows: Sequence[Outcome]) -> list[tuple[float, Sequence[Outcome], Plot]]:
    everything = [row for row in rows if row.strategy == EVERYTHING]
    found: list[tuple[float, Sequence[Outcome], Plot]] = []
    for fraction in dict.fromkeys(row.fraction for row in rows if row.strategy != EVERYTHING):
        within = [row for row in rows if row.fraction == fraction and row.strategy != EVERYTHING]
        plot = accuracy_over_time([*within, *everything])
        if plot is not None:
            found.append((fraction, [*within, *everything], plot))
    return found


def unfolded(
    shown: Sequence[Thumbnail],
) -> tuple[tuple[Thumbnail, ...], tuple[Thumbnail, ...]]:
    """What is seen at once, spread over all that there is (rows may lie by class), and the rest."""
    step = -(-len(shown) // NUM_UNFOLDED) or 1
    seen = shown[::step]
    return tuple(seen), tuple(item for place, item in enumerate(shown) if place % step)


def _maps(report: Report) -> list[DrawnMap]:
    found, diagnosis = report.example_map, report.diagnosis
    if found is None:
        return []
    suspects: tuple[tuple[Point, str], ...] = ()
    if diagnosis is not None:
        worst = {issue.id for issue in diagnosis.label_issues()[:MOST_SUSPECTS]}
        suspects = tuple(
            (point, diagnosis.class_names[diagnosis.suggested_label[point.row]])
            for point in found.points
            if point.row in worst
        )
    maps = []
    for story in report.stories:
        chosen = frozenset(story.subset.indices.tolist())
        num_chosen = sum(point.row in chosen for point in found.points)
        num_others = len(found.points) - num_chosen
        maps.append(DrawnMap(found.layers(chosen), suspects, chosen, num_chosen, num_others))
    return maps


def _chosen_by(report: Report) -> dict[int, list[str]]:
    return {
        view.row: [
            story.subset.strategy
            for story in report.stories
            if (story.subset.indices == view.row).any()
        ]
        for view in report.suspects
    }


def in_soup_order(learners: Sequence[LearnerView]) -> list[LearnerView]:
    """As the soup tried them; those that it never saw come last."""
    return sorted(
        learners,
        key=lambda learner: (
            learner.ingredient is None,
            learner.ingredient.position if learner.ingredient else learner.index,
        ),
    )
