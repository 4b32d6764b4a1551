"""Configuration: every setting of coordinator, runs, workers, pools, training and distillation."""

from __future__ import annotations

import re

from pydantic import BaseModel

from lipt import Recipe
from lipt.common.config.knobs import Knob, sections, toml_value
from lipt.coordinator.settings import CoordinatorSettings
from lipt.trainer.distillation import Distillation
from lipt.worker.settings import PoolSettings, WorkerSettings

# Characters with a meaning in Markdown, outside of `code`.
_MARKUP = re.compile(r"(`[^`]*`)|([*_<>|\[\]\\])")
_TABLE_HEAD = ("| setting | default | allowed | what it does |", "|---|---|---|---|")
_PARTS = (
    ("The coordinator and its runs", CoordinatorSettings),
    ("Workers", WorkerSettings),
    ("Worker pools", PoolSettings),
    ("Main training", Recipe),
    ("Distillation", Distillation),
)


def configuration() -> str:
    """All settings as Markdown."""
    return "\n".join(
        f"### {heading}\n\n{markdown_tables(model, level=4)}" for heading, model in _PARTS
    )


def markdown_tables(model: type[BaseModel], *, level: int) -> str:
    """A Markdown table for each section of a model, under headings of the given level."""
    blocks = []
    for section in sections(model):
        if section.name:
            blocks += [f"{'#' * level} `[{section.name}]`", _escape(section.description)]
        if section.knobs:
            blocks.append("\n".join([*_TABLE_HEAD, *map(_row, section.knobs)]))
    return "\n\n".join(blocks) + "\n"


def _row(knob: Knob) -> str:
    default = "required" if knob.required else ""
    if knob.default is not None:
        default = f"`{toml_value(knob.default)}`"
    cells = (f"`{knob.name}`", default, _escape(knob.allowed), _escape(knob.description))
    return f"| {' | '.join(cells)} |"


def _escape(text: str) -> str:
    return _MARKUP.sub(lambda found: found[1] or f"\\{found[2]}", text)
