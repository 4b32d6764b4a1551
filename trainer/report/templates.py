"""Templates of this package's pages: what is put into one is text, and is printable."""

from __future__ import annotations

from importlib import resources
from typing import Any

from lipt.common.imports import import_extra
from lipt.common.sizes import format_bytes
from lipt.common.text import escaped
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
        finalize=_finalize,
        undefined=jinja2.StrictUndefined,
        loader=jinja2.FunctionLoader(_source),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["percent"] = format_percent
    environment.filters["size"] = format_bytes
    return environment


def _finalize(value: Any) -> Any:
    """What a value is shown as, before it is escaped: a string without marks that act.

    What a macro made (a string of another class) has been through this already.
    """
    return escaped(value, keep="\n\t") if type(value) is str else value


def _source(name: str) -> str:
    return resources.files("lipt.trainer.report").joinpath(name).read_text("utf-8")
