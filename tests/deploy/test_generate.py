from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
import typer.main
from pydantic import BaseModel

from deploy.generate import example_files
from lipt.common.config.knobs import Section, sections
from lipt.common.config.settings import load_settings
from lipt.coordinator import cli as coordinator_cli
from lipt.coordinator.settings import CoordinatorSettings
from lipt.trainer.main_training import Recipe
from lipt.worker import cli as worker_cli
from lipt.worker.settings import WorkerSettings

DEPLOY = Path(__file__).parents[2] / "deploy"
MODELS = [CoordinatorSettings, WorkerSettings, Recipe]


def test_example_files_are_those_that_make_generate_writes() -> None:
    kept = {path.name: path.read_text("utf-8") for path in DEPLOY.glob("*.example.toml")}
    assert kept == example_files(), "run: make generate"


def test_coordinator_s_example_shows_the_defaults() -> None:
    shown = load_settings(CoordinatorSettings, config=DEPLOY / "run.example.toml", flags={})
    flags = {"dataset": {"source": "digits"}}
    assert shown == load_settings(CoordinatorSettings, config=None, flags=flags)


def test_worker_s_example_shows_the_defaults() -> None:
    shown = load_settings(WorkerSettings, config=DEPLOY / "worker.example.toml", flags={})
    assert shown == load_settings(WorkerSettings, config=None, flags={})


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


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_section_is_introduced(model: type[BaseModel]) -> None:
    assert [part.name for part in sections(model) if not part.description.endswith(".")] == []


@pytest.mark.parametrize("model", [CoordinatorSettings, WorkerSettings])
def test_setting_without_a_default_has_an_example(model: type[BaseModel]) -> None:
    def lacking(section: Section) -> list[str]:
        return [knob.name for knob in section.knobs if (knob.default, knob.example) == (None, None)]

    assert [name for section in sections(model) for name in lacking(section)] == []


@pytest.mark.parametrize(
    ("app", "model"),
    [(coordinator_cli.app, CoordinatorSettings), (worker_cli.app, WorkerSettings)],
    ids=["lipt-coordinator", "lipt-worker"],
)
def test_flag_has_its_setting_s_words(app: typer.Typer, model: type[BaseModel]) -> None:
    described = tuple(knob.description for part in sections(model) for knob in part.knobs)
    options: list[Any] = typer.main.get_command(app).params
    helps = {option.name: option.help for option in options}
    del helps["config"], helps["print_config"], helps["version"]
    assert [name for name, text in helps.items() if not text.startswith(described)] == []
    assert len(helps) > 10
