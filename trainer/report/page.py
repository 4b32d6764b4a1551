"""From a gathered report to HTML: one file, no network, everything escaped."""

from __future__ import annotations

import json
from importlib import resources

from lipt.common.extras import import_extra
from lipt.trainer.cli.output import format_bytes, format_percent
from lipt.trainer.comparison import table
from lipt.trainer.report.gathering import Report
from lipt.trainer.report.plot import accuracy_against_cost


def render(report: Report) -> str:
    """The page.

    Raises:
        MissingExtraError: jinja2 is not installed.
    """
    jinja2 = import_extra("jinja2", package="jinja2", extra="report", needed_for="lipt report")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["percent"] = format_percent
    environment.filters["size"] = format_bytes
    source = resources.files("lipt.trainer.report").joinpath("page.html").read_text("utf-8")
    run = report.run
    page: str = environment.from_string(source).render(
        report=report,
        run=run,
        soup=run.soup,
        costs=run.costs,
        learners=sorted(
            run.learners,
            key=lambda item: (
                item.ingredient is None,
                item.ingredient and item.ingredient.position,
            ),
        ),
        header=table.HEADER,
        rows=[(row, table.cells(row)) for row in report.outcomes],
        plot=accuracy_against_cost(report.outcomes) if report.outcomes else None,
        config=json.dumps(run.config.model_dump(mode="json"), indent=2),
        recipe=json.dumps(report.comparison["recipe"], indent=2) if report.comparison else "",
    )
    return page
