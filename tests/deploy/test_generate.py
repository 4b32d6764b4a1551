from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from deploy.generate import example_files
from lipt.common.config.knobs import sections
from lipt.common.config.settings import load_settings
from lipt.coordinator.settings import CoordinatorSettings
from lipt.trainer.main_training import Recipe
from lipt.worker.settings import WorkerSettings

DEPLOY = Path(__file__).parents[2] / "deploy"
MODELS = [CoordinatorSettings, WorkerSettings, Recipe]


def test_example_files_are_those_that_make_generate_writes() -> None:
    kept = {path.name: path.read_text("utf-8") for path in DEPLOY.glob("*.example.toml")}
    assert kept == example_files(), "run: make generate"


@pytest.mark.parametrize(
    ("model", "file", "needed"),
    [
        (CoordinatorSettings, "run", {"dataset": {"source": "digits"}}),
        (WorkerSettings, "worker", {}),
    ],
)
def test_example_shows_the_defaults(model: Any, file: str, needed: dict[str, Any]) -> None:
    shown = load_settings(model, config=DEPLOY / f"{file}.example.toml", flags={})
    assert shown == load_settings(model, config=None, flags=needed)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_setting_is_described_in_one_or_two_lines(model: type[BaseModel]) -> None:
    knobs = [knob for section in sections(model) for knob in section.knobs]
    wrong = [
        knob.name
        for knob in knobs
        if not (
            knob.description.endswith(".") and 1 <= len(textwrap.wrap(knob.description, 98)) <= 2
        )
    ]
    assert wrong == []
    assert len(knobs) > 10
