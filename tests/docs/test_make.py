import re
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel

from docs.make.check import complaints, loads_from_elsewhere
from docs.make.configuration import configuration
from docs.make.errors import errors
from docs.make.markdown import table
from docs.make.metrics import metrics
from docs.make.strategies import section, strategies
from lipt import Recipe
from lipt.common.config.knobs import sections
from lipt.common.config.run_config import RunConfig
from lipt.common.observability.metrics import EVERYWHERE
from lipt.coordinator.instruments import COORDINATOR
from lipt.coordinator.settings import CoordinatorSettings
from lipt.core.selection.select import STRATEGIES
from lipt.core.selection.selection import Selection, unweighted
from lipt.core.selection.strategy import Strategy
from lipt.core.signals.signals import Signals
from lipt.trainer.distillation import Distillation
from lipt.worker.instruments import WORKER
from lipt.worker.settings import WorkerSettings


def made_up(
    signals: Signals,
    budget: int,
    *,
    metric: Annotated[Literal["near", "far"], "what is close"] = "near",
) -> Selection:
    """Choose the first ones."""
    return unweighted(signals.labels_N[:budget])


def test_every_strategy_has_a_row_and_a_section_with_its_options() -> None:
    page = strategies()
    for name, strategy in STRATEGIES.items():
        assert f"| [{name}](#{name}) |" in page
        own = page.partition(f"### {name} {{ #{name} }}")[2].partition("\n### ")[0]
        assert strategy.cost in own
        for option in strategy.options:
            assert f"| `{option.name}` | `{option.default}` |" in own
        for preset_name, preset in strategy.presets.items():
            assert f"| `{preset_name}` | {preset.summary} |" in own


def test_a_strategys_options_are_described_by_their_annotations() -> None:
    made = Strategy(made_up, summary="first ones", paper="", cost="N")
    assert "| `metric` | `near` | near, far | what is close |" in section(made)


@pytest.mark.parametrize(
    "model", [CoordinatorSettings, RunConfig, WorkerSettings, Recipe, Distillation]
)
def test_every_setting_has_a_row_with_its_description(model: type[BaseModel]) -> None:
    page = configuration()
    for part in sections(model):
        for knob in part.knobs:
            assert re.search(rf"^\| `{knob.name}` \| .* \| \S.* \|$", page, re.MULTILINE)


def test_every_metric_has_a_row_with_its_type_and_labels() -> None:
    page = metrics()
    for instrument in (*EVERYWHERE, *COORDINATOR, *WORKER):
        assert f"| `{instrument.name}` | " in page
    row = "| `lipt_rpc_duration_seconds` | histogram | `method`, `code` | Seconds of calls "
    assert row in page


def test_every_reason_leads_to_its_entry() -> None:
    page = errors()
    assert (
        "| [INVALID_BUDGET](troubleshooting.md#invalid_budget) "
        "| `BudgetError` | INVALID_ARGUMENT | no |\n" in page
    )
    assert "INTERNAL" in page
    assert page.count("[UNREACHABLE]") == 1


def test_a_cell_stays_one_cell() -> None:
    assert table(("a",), [("x | y\nz",)]) == "| a |\n| --- |\n| x \\| y z |\n"


@pytest.mark.parametrize(
    "loading",
    [
        '<script defer src="https://cdn.example/x.js"></script>',
        "<link rel=stylesheet href=//fonts.example/css>",
        '<img alt="a" src="http://pictures.example/a.png">',
        "<style>@import url('https://fonts.example/x.css')</style>",
    ],
)
def test_external_resources_of_a_page_are_found(loading: str, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(f"<p>{loading}</p>")
    (wrong,) = loads_from_elsewhere(tmp_path)
    assert wrong.startswith("index.html loads ")
    assert ".example" in wrong


def test_external_resources_are_not_confused_with_links(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(
        '<a href="https://elsewhere.example">x</a><script src="assets/x.js"></script>'
    )
    assert list(loads_from_elsewhere(tmp_path)) == []


def test_docstring_parser_warnings_fail_the_build() -> None:
    said = "Build started\ngriffe: trainer/samplers.py:1: No type\nNo issues found\n"
    assert complaints(said) == ["griffe: trainer/samplers.py:1: No type"]
