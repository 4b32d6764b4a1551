"""What the pages say of the sources: names, files, reasons and events that are there."""

import re
import tomllib
from pathlib import Path

import pytest

from lipt.common.errors import error_classes
from lipt.common.observability.logs import EventKind

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PACKAGES = ("common", "core", "coordinator", "worker", "trainer", "lipt")
PAGES = sorted(path for path in DOCS.rglob("*.md") if "generated" not in path.parts)
TEXTS = [*PAGES, *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md"))]


def text(path: Path) -> str:
    return path.read_text("utf-8")


def sources(*folders: str) -> str:
    return "\n".join(text(path) for name in folders for path in (ROOT / name).rglob("*.py"))


def test_every_page_is_in_the_navigation() -> None:
    config = tomllib.loads(text(ROOT / "zensical.toml"))
    named = set(re.findall(r"[\w/-]+\.md", str(config["project"]["nav"])))
    assert named == {str(page.relative_to(DOCS)) for page in PAGES}


def test_folders_and_files_of_the_architecture_exist() -> None:
    page = text(DOCS / "architecture.md")
    drawing = page.partition("```text")[2].partition("```")[0]
    drawn = re.findall(r"[\w/]+(?:/|\.py)(?=[ :])", drawing)
    listed = re.findall(
        r"`([\w/]+(?:/|\.py))`", " ".join(re.findall(r"^\| (.*?) \|", page, re.MULTILINE))
    )
    assert len(drawn) > 10
    assert len(listed) > 20
    for name in (*drawn, *listed):
        assert any((ROOT / room / name).exists() for room in (".", "coordinator", "core")), name


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_named_on_pages_exist(page: Path) -> None:
    folders = "|".join((*PACKAGES, "proto", "tests", "examples", "benchmarks", "deploy"))
    for name in re.findall(rf"`((?:{folders})/[\w/.-]+)`", text(page)):
        assert "NAME" in name or (ROOT / name).exists(), name


def test_architecture_says_what_each_folder_of_the_coordinator_holds() -> None:
    page = text(DOCS / "architecture.md")
    for path in (ROOT / "coordinator").iterdir():
        if path.is_dir() and path.name != "__pycache__":
            assert f"\n| `{path.name}/` | " in page


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_links_from_outside_of_the_site_lead_to_files(name: str) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", text(ROOT / name)):
        assert (ROOT / target).is_file(), target


def test_troubleshooting_has_a_whole_entry_for_each_reason() -> None:
    reasons = {cls.reason for cls in error_classes()}
    entries = re.findall(r"^### (\w+)$", text(DOCS / "troubleshooting.md"), re.MULTILINE)
    assert sorted(entries) == sorted(reasons)
    entries = re.split(r"^### \w+$", text(DOCS / "troubleshooting.md"), flags=re.MULTILINE)[1:]
    for entry in entries:
        parts = re.findall(r"^- \*\*(You see|Why|Do):\*\*", entry, re.MULTILINE)
        assert parts == ["You see", "Why", "Do"], entry


def test_the_glossary_s_names_exist_in_the_code() -> None:
    used = set(re.findall(r"[\w-]+", sources(*PACKAGES) + text(ROOT / "pyproject.toml")))
    rows = re.findall(r"^\| [^|]+ \| (`[^|]+) \| ", text(DOCS / "glossary.md"), re.MULTILINE)
    assert len(rows) == text(DOCS / "glossary.md").count("\n| ") - 1
    for row in rows:
        assert set(re.findall(r"`([^`]+)`", row)) <= used


def test_operations_lists_every_event() -> None:
    row = r"^\| `(\w+)` \| [^|]+ \| [^|]*\|$"
    listed = re.findall(row, text(DOCS / "operations.md"), re.MULTILINE)
    assert listed == [kind.value for kind in EventKind]


def test_the_demo_in_the_readme_ends_as_the_results_show() -> None:
    (shown,) = re.findall(r"^```text\n(72 of .+?)^```$", text(README), re.MULTILINE | re.DOTALL)
    printed = text(DOCS / "results.md").splitlines()
    for line in shown.splitlines():
        assert any(whole.startswith(line) for whole in printed), line


SETTINGS = {"clean": "clean", "36% wrong": "noise40"}
TRAINED_ON = {
    "class-balanced random": "uniform_per_class",
    "`auto`": "auto",
    "random, soft labels": "uniform_per_class:soft",
    "`auto`, soft labels": "auto:soft",
}


def test_the_readme_s_table_equals_the_page_s() -> None:
    page = text(DOCS / "value.md").partition("## cifar10-20k, converged")[2].partition("\n## ")[0]
    measured = {}
    for line in page.splitlines():
        if line.startswith(tuple(f"| {setting} " for setting in SETTINGS.values())):
            setting, kept, strategy, _, accuracy, to_random, *_ = line.strip("| ").split(" | ")
            interval = re.sub(r"^\S+ (?=\()", " ", to_random) if to_random != "-" else ""
            measured[setting, kept, strategy] = accuracy.split(" +- ")[0] + interval
    rows = [line.strip("| ").split(" | ") for line in text(README).splitlines() if line[:1] == "|"]
    head = next(row for row in rows if row[0] == "labels")
    shown = [row for row in rows if row[0] in SETTINGS]
    assert len(shown) == len(SETTINGS) * len(TRAINED_ON)
    for labels, trained_on, *cells in shown:
        for kept, cell in zip(head[2:], cells, strict=True):
            assert cell == measured[SETTINGS[labels], kept, TRAINED_ON[trained_on]]
