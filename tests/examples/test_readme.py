"""The code that README and documentation show is the code that runs in the tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.examples.conftest import EXAMPLES

ROOT = EXAMPLES.parent
README = ROOT / "README.md"
PAGES = sorted((ROOT / "docs").rglob("*.md"))
MAX_README_LINES = 150
MAX_SCRIPT_LINES = 25


def python_blocks(page: Path) -> list[tuple[str, str]]:
    """What stands behind the language of a page's Python blocks, and their text."""
    blocks = r"^```python *(.*?)\n(.*?)^```$"
    return re.findall(blocks, page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def test_the_readme_keeps_to_its_length() -> None:
    assert len(README.read_text("utf-8").splitlines()) <= MAX_README_LINES


def test_the_training_script_is_short() -> None:
    lines = (EXAMPLES / "train.py").read_text("utf-8").splitlines()
    assert len(lines) <= MAX_SCRIPT_LINES


def test_python_in_the_readme_is_an_example_word_for_word() -> None:
    blocks = dict(python_blocks(README))
    assert set(blocks) == {"your_arrays.py"}
    for name, text in blocks.items():
        assert text == (EXAMPLES / name).read_text("utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_in_a_page_is_included_from_a_file_that_is_tested(page: Path) -> None:
    for _, text in python_blocks(page):
        included = re.fullmatch(r'--8<-- "(.+?)(?::\w+)?"\n', text)
        assert included is not None, text
        assert (ROOT / included[1]).is_file()
