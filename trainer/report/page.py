"""Page of a report: one HTML file, no network, everything escaped."""

from __future__ import annotations

import json
from collections.abc import Sequence

from lipt.trainer.comparison import table
from lipt.trainer.comparison.baselines import EVERYTHING
from lipt.trainer.comparison.outcomes import Outcome
from lipt.trainer.report.gathering import NUM_THUMBNAILS, Report
from lipt.trainer.report.plot import (
    Plot,
    accuracy_against_cost,
    accuracy_over_time,
    interval_scale,
    soup_by_learner,
)
from lipt.trainer.report.templates import open_templates
from lipt.trainer.views import LearnerView


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
        num_thumbnails=NUM_THUMBNAILS,
        config=json.dumps(run.config.model_dump(mode="json"), indent=2),
        recipe=json.dumps(report.comparison["recipe"], indent=2) if report.comparison else "",
    )
    return page


def _courses(rows: Sequence[Outcome]) -> list[tuple[float, Sequence[Outcome], Plot]]:
    """For each fraction its rows, everything beside them, and the plot of their courses."""
    everything = [row for row in rows if row.strategy == EVERYTHING]
    found: list[tuple[float, Sequence[Outcome], Plot]] = []
    for fraction in dict.fromkeys(row.fraction for row in rows if row.strategy != EVERYTHING):
        within = [row for row in rows if row.fraction == fraction and row.strategy != EVERYTHING]
        plot = accuracy_over_time([*within, *everything])
        if plot is not None:
            found.append((fraction, [*within, *everything], plot))
    return found


def in_soup_order(learners: Sequence[LearnerView]) -> list[LearnerView]:
    """As the soup tried them; those that it never saw come last."""
    return sorted(
        learners,
        key=lambda learner: (
            learner.ingredient is None,
            learner.ingredient.position if learner.ingredient else learner.index,
        ),
    )
