"""Templates of this package's pages: everything that is put into one is escaped."""

from __future__ import annotations

from importlib import resources
from typing import Any

from lipt.common.imports.extras import import_extra
from lipt.common.sizes import format_bytes
from lipt.trainer.writing.formatting import format_percent


def open_templates(needed_for: str) -> Any:
    """jinja2's environment with the templates of this package.

    Args:
        needed_for: the command that makes the page, for the message where jinja2 is missing.

    Raises:
        MissingExtraError: jinja2 is not installed.
    """
    jinja2 = import_extra("jinja2", package="jinja2", extra="report", needed_for=needed_for)
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        loader=jinja2.FunctionLoader(_source),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["percent"] = format_percent
    environment.filters["size"] = format_bytes
    return environment


def _source(name: str) -> str:
    return resources.files("lipt.trainer.report").joinpath(name).read_text("utf-8")
