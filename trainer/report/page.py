"""Page of a report: one HTML file, no network, everything escaped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources

from lipt.common.imports.extras import import_extra
from lipt.trainer.comparison import table
from lipt.trainer.report.gathering import NUM_THUMBNAILS, Report
from lipt.trainer.report.plot import accuracy_against_cost, interval_scale, soup_by_learner
from lipt.trainer.views import LearnerView
from lipt.trainer.writing.formatting import format_bytes, format_percent


def render(report: Report) -> str:
    """The page.

    Raises:
        MissingExtraError: jinja2 is not installed.
    """
    jinja2 = import_extra("jinja2", package="jinja2", extra="report", needed_for="lipt report")
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        loader=jinja2.FunctionLoader(_source),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["percent"] = format_percent
    environment.filters["size"] = format_bytes
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


def _source(name: str) -> str:
    return resources.files("lipt.trainer.report").joinpath(name).read_text("utf-8")


def in_soup_order(learners: Sequence[LearnerView]) -> list[LearnerView]:
    """As the soup tried them; those that it never saw come last."""
    return sorted(
        learners,
        key=lambda learner: (
            learner.ingredient is None,
            learner.ingredient.position if learner.ingredient else learner.index,
        ),
    )
