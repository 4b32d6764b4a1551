"""Page of a report: one HTML file, no network, everything escaped."""

from __future__ import annotations

import json
from collections.abc import Sequence

from lipt.trainer.comparison import table
from lipt.trainer.report.gathering import NUM_THUMBNAILS, Report
from lipt.trainer.report.plot import accuracy_against_cost, interval_scale, soup_by_learner
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
        header=table.HEADER,
        cells=table.cells,
        rows=rows,
        interval=interval_scale(rows),
        series=dict.fromkeys(row.strategy for row in rows),
        beats_random=any(row.beats_random for row in rows),
        plot=accuracy_against_cost(rows) if rows else None,
        num_thumbnails=NUM_THUMBNAILS,
        config=json.dumps(run.config.model_dump(mode="json"), indent=2),
        recipe=json.dumps(report.comparison["recipe"], indent=2) if report.comparison else "",
    )
    return page


def in_soup_order(learners: Sequence[LearnerView]) -> list[LearnerView]:
    """As the soup tried them; those that it never saw come last."""
    return sorted(
        learners,
        key=lambda learner: (
            learner.ingredient is None,
            learner.ingredient.position if learner.ingredient else learner.index,
        ),
    )
