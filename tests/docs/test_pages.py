"""What the pages say of the sources: names, files, reasons and events that are there."""

import re
import tomllib
from pathlib import Path

import pytest

from lipt.common.errors import error_classes
from lipt.common.observability.logs import EventKind

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
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


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_are_there(page: Path) -> None:
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


def test_operations_lists_every_event() -> None:
    row = r"^\| `(\w+)` \| [^|]+ \| [^|]*\|$"
    listed = re.findall(row, text(DOCS / "operations.md"), re.MULTILINE)
    assert listed == [kind.value for kind in EventKind]
