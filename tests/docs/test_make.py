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
from docs.make.plain_words import complaints as found_in
from docs.make.plain_words import main
from docs.make.strategies import section, strategies
from lipt import Recipe
from lipt.common.config.knobs import sections
from lipt.common.config.run_config import RunConfig
from lipt.common.observability.metrics import EVERYWHERE
from lipt.coordinator.instruments import COORDINATOR
from lipt.coordinator.settings import CoordinatorSettings
from lipt.core.selection.select import STRATEGIES
from lipt.core.selection.selection import Selection, unweighted
from lipt.core.selection.strategy import Cost, Growth, Strategy
from lipt.core.signals.views import ExampleLabels
from lipt.trainer.distillation import Distillation
from lipt.worker.instruments import WORKER
from lipt.worker.settings import WorkerSettings


def made_up(
    labels: ExampleLabels,
    budget: int,
    *,
    metric: Annotated[Literal["near", "far"], "what is close"] = "near",
) -> Selection:
    """Choose the first ones."""
    return unweighted(labels.labels_N[:budget])


def test_every_strategy_has_a_row_and_a_section_with_its_options() -> None:
    page = strategies()
    for name, strategy in STRATEGIES.items():
        assert f"| [{name}](#{name}) |" in page
        own = page.partition(f"### {name} {{ #{name} }}")[2].partition("\n### ")[0]
        assert str(strategy.cost) in own
        for option in strategy.options:
            assert f"| `{option.name}` | `{option.default}` |" in own
        for preset_name, preset in strategy.presets.items():
            assert f"| `{preset_name}` | {preset.summary} |" in own


def test_a_strategys_options_are_described_by_their_annotations() -> None:
    made = Strategy(made_up, summary="first ones", cost=Cost(Growth.LINEAR, "N"))
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


LONG = " ".join(["word"] * 36)


@pytest.mark.parametrize(
    ("sentence", "term"),
    [
        ("Of which it was made nobody knows.", "nobody"),
        ("What is had of a model,\nwhichever that is.", "is had"),
        ("What both have in\ncommon is of one kind.", "What both have in common is of"),
        ("What the worker is told is logged.", "What the worker is told"),
        ("All is as ever.", "as ever"),
        ("A softmax of chances.", "chances"),
    ],
)
def test_a_planted_sentence_is_found_with_its_line(sentence: str, term: str) -> None:
    in_one_line = " ".join(sentence.split())
    texts = {
        "a.md": f"Plain.\n{sentence}\n",
        "comment.py": f"x = 1\n# {in_one_line}\n",
        "docstring.py": f'x = 1\n"""{sentence}"""\n',
        "message.py": f'x = 1\nprint(f"{{x}}: {in_one_line}")\n',
    }
    for name, text in texts.items():
        assert [line for line, why in found_in(name, text) if repr(term) in why] == [2]


def test_a_docstring_begins_with_a_noun() -> None:
    assert [line for line, _ in found_in("a.py", '"""What is compared."""')] == [1]
    assert found_in("a.py", '"""Plan of a comparison: what is compared."""') == []


@pytest.mark.parametrize(
    ("page", "lines"),
    [
        (f"Plain.\n\n{LONG}.\n", [3]),
        (f"- {LONG}\n- {LONG}\n", [1, 2]),
        (f"| a | {LONG} |\n", [1]),
        # Code, addresses and sentences that end are no long sentences.
        (f"```\n{LONG}\n```\n\n    {LONG}\n", []),
        (f"`{LONG}` and [one](two three)\n", []),
        ("Ten plain words stand here. " * 6, []),
    ],
)
def test_long_sentences_are_found_on_their_lines(page: str, lines: list[int]) -> None:
    assert [line for line, _ in found_in("a.md", page)] == lines


@pytest.mark.parametrize(
    ("message", "lines"),
    [
        ('f"{x} is bad. Do this."', []),
        ('f"{x} is bad. Do this. {x} {x}"', [1]),
        (f'"{"word " * 40}"', []),
        (f'"{"word " * 41}"', [1]),
    ],
)
def test_long_errors_are_found(message: str, lines: list[int]) -> None:
    assert [line for line, _ in found_in("a.py", f"raise ConfigError({message})")] == lines


def test_the_command_fails_and_names_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("docs.make.plain_words._ROOT", tmp_path)
    (tmp_path / "a.md").write_text("Nobody knows.\n")
    assert main(["a.md"]) == 1
    assert capsys.readouterr().out.startswith("a.md:1: 'Nobody'")
    (tmp_path / "a.md").write_text("The coordinator knows.\n")
    assert main(["a.md"]) == 0
