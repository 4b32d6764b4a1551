"""The page's files as they are served: whole, of one kind, and without what could run markup."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from lipt.coordinator.page.application import STATIC

SCRIPTS = sorted(STATIC.glob("*.js"))
# The only one that runs before the page is drawn, and so is no module.
CLASSIC = "theme.js"
# What reads text as markup or as code, and what a strict Content-Security-Policy refuses.
DANGEROUS = re.compile(
    r"[iI]nnerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|srcdoc"
    r"|\beval\(|new Function"
    r"|createContextualFragment|setAttribute\(.(style|on)|\bstyle:|https?://(?!www\.w3\.org/2000/svg)"
)
# One process for all: `node --check` takes one file, and takes .js for no module.
PARSE = """
import { readFileSync } from "node:fs";
import { SourceTextModule } from "node:vm";
for (const name of process.argv.slice(1)) {
  new SourceTextModule(readFileSync(name, "utf8"), { identifier: name });
}
"""
IMPORT = re.compile(r'^import .* from "\./([\w/-]+\.js)";$', re.MULTILINE)
# preact/standalone.module.js of the npm package htm 3.1.1, as it was published.
VENDORED = "vendor/htm-preact.js"
VENDORED_SHA256 = "72284e8e9079c87817145df1110f74e8a2aa040b2fc384922e18dfcb46fc1fd7"


def test_there_are_files() -> None:
    assert len(SCRIPTS) > 8
    assert {"index.html", "page.css", "icon.svg"} <= {path.name for path in STATIC.iterdir()}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_script_reads_no_text_as_markup_and_loads_nothing_from_elsewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert DANGEROUS.search(text) is None
    assert len(text.splitlines()) <= 300
    assert [name for name in IMPORT.findall(text) if not (STATIC / name).is_file()] == []


def test_every_script_is_reached() -> None:
    reached, waiting = set[str](), ["main.js", CLASSIC]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += IMPORT.findall((STATIC / name).read_text(encoding="utf-8"))
    assert reached == {path.name for path in SCRIPTS} | {VENDORED}


def test_the_vendored_library_is_what_was_published_with_its_licences() -> None:
    content = (STATIC / VENDORED).read_bytes()
    assert hashlib.sha256(content).hexdigest() == VENDORED_SHA256
    licences = (STATIC / "vendor" / "LICENSE").read_text(encoding="utf-8")
    assert "The MIT License (MIT)" in licences
    assert "Apache License" in licences


def test_document_has_no_inline_code_and_no_style() -> None:
    text = (STATIC / "index.html").read_text(encoding="utf-8")
    assert re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=\"/static/)", text) is None


def test_every_script_parses() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node here: apt-get install nodejs")
    flags = ["--experimental-vm-modules", "--no-warnings", "--input-type=module", "--eval", PARSE]
    names = [str(path) for path in SCRIPTS if path.name != CLASSIC]
    checked = subprocess.run([node, *flags, *names], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    classic = subprocess.run([node, "--check", str(STATIC / CLASSIC)], check=False)
    assert classic.returncode == 0
