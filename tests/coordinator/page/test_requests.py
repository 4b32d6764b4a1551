from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from pathlib import Path
from unittest.mock import Mock

import pytest

from lipt.common.errors import InvalidRequestError
from lipt.coordinator.page.application import STATIC
from lipt.coordinator.page.handlers import pictures
from lipt.coordinator.page.requests import PageRequest, by_fields, require_json

REQUEST = Mock(PageRequest, http=Mock(path_params={}))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b'{"ids": [NaN]}',
        b'{"ids": ["1"]}',
        b'{"ids": [' + b"9" * 5000 + b"]}",
        b'{"ids": ' + b"[" * 30_000,
        b'{"ids": [], "more": 1}',
        b'{"ids": [' + b",".join([b"1"] * 10_000) + b"]}",
        b'{"\\ud800": 1}',
        b"\xff{}",
    ],
)
async def test_a_body_is_json_of_what_is_asked_for(body: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        await by_fields(pictures)(REQUEST, body)


async def test_refusal_names_the_place_and_not_the_content() -> None:
    with pytest.raises(InvalidRequestError, match=r"^ids\.1 cannot be: "):
        await by_fields(pictures)(REQUEST, b'{"ids": [1, "<script>"]}')


@pytest.mark.parametrize("kind", [None, "", "text/plain", "application/x-www-form-urlencoded"])
def test_what_a_form_of_another_page_can_send_is_refused(kind: str | None) -> None:
    with pytest.raises(InvalidRequestError, match="Send application/json"):
        require_json(kind)
    require_json("Application/JSON; charset=utf-8")


SCRIPTS = sorted(STATIC.glob("*.js"))
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


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_script_reads_no_text_as_markup_and_loads_nothing_from_elsewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert DANGEROUS.search(text) is None
    assert len(text.splitlines()) <= 300
    assert [name for name in IMPORT.findall(text) if not (STATIC / name).is_file()] == []


def test_every_script_is_reached() -> None:
    reached, waiting = set[str](), ["main.js"]
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
    names = [str(path) for path in SCRIPTS]
    checked = subprocess.run([node, *flags, *names], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
