"""Page of a report: one HTML file, no network, everything escaped."""

from __future__ import annotations

import json
from importlib import resources

from lipt.common.imports.extras import import_extra
from lipt.trainer.comparison import table
from lipt.trainer.comparison.verdict import Outcome
from lipt.trainer.report.gathering import NUM_THUMBNAILS, Report
from lipt.trainer.report.plot import accuracy_against_cost, interval_strips
from lipt.trainer.report.soup_plot import in_soup_order, soup_by_learner
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
    page: str = environment.get_template("page.html").render(
        report=report,
        run=run,
        soup=run.soup,
        soup_plot=soup_by_learner(run.learners),
        costs=run.costs,
        learners=in_soup_order(run.learners),
        header=table.HEADER,
        rows=list(zip(rows, map(_typeset, rows), interval_strips(rows), strict=True)),
        beats_random=any(row.beats_random for row in rows),
        plot=accuracy_against_cost(rows) if rows else None,
        num_thumbnails=NUM_THUMBNAILS,
        config=json.dumps(run.config.model_dump(mode="json"), indent=2),
        recipe=json.dumps(report.comparison["recipe"], indent=2) if report.comparison else "",
    )
    return page


def _source(name: str) -> str:
    return resources.files("lipt.trainer.report").joinpath(name).read_text("utf-8")


def _typeset(row: Outcome) -> list[str]:
    """A row's cells with the signs that a terminal may lack."""
    return [cell.replace("+-", "±") for cell in table.cells(row)]
