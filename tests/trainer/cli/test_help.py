from __future__ import annotations

import inspect
import json
import subprocess
import sys

import pytest

from lipt.trainer.client.client import Client
from lipt.trainer.views import DEFAULT_STRATEGY

COMMANDS = [
    [],
    ["demo"],
    ["run"],
    ["run", "start"],
    ["run", "list"],
    ["run", "show"],
    ["run", "watch"],
    ["run", "cancel"],
    ["subset"],
    ["subset", "get"],
    ["strategies"],
    ["weights", "get"],
    ["check"],
    ["diagnose"],
    ["doctor"],
    ["certs"],
    ["certs", "init"],
    ["certs", "coordinator"],
    ["certs", "worker"],
    ["certs", "trainer"],
    ["certs", "admin"],
    ["train"],
    ["plan"],
    ["distill"],
    ["up"],
    ["compare"],
    ["report"],
]

# Asks for the help of one command after another, in a process that has done nothing else, and
# prints of each the text and which of the slow packages it has imported. pydantic is typer's
# own choice.
SCRIPT = """
import contextlib, io, json, sys
from lipt.trainer.cli import main
slow, known, told = {"torch", "grpc", "google.protobuf", "numpy", "rich.console"}, set(), []
for command in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
        main([*command, "--help"], prog_name="lipt")
    told.append([text.getvalue(), sorted((slow & set(sys.modules)) - known)])
    known |= slow & set(sys.modules)
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def helps(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, list[str]]]:
    """The text of each command's help, and what it was the first to import."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(COMMANDS)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        # Plug-ins are found by what is installed, not by what an older build left in a checkout.
        cwd=tmp_path_factory.mktemp("elsewhere"),
    )
    return [(text, slow) for text, slow in json.loads(done.stdout)]


@pytest.mark.parametrize("number", range(len(COMMANDS)), ids=lambda n: " ".join(COMMANDS[n]))
def test_help_imports_nothing_slow(helps: list[tuple[str, list[str]]], number: int) -> None:
    text, slow = helps[number]
    assert " ".join(["Usage: lipt", *COMMANDS[number]]) in text
    assert slow == []


@pytest.mark.parametrize("command", [["subset", "get"], ["report"]])
def test_every_command_chooses_by_the_same_strategy_where_none_is_named(
    helps: list[tuple[str, list[str]]], command: list[str]
) -> None:
    text, _ = helps[COMMANDS.index(command)]
    assert f"[default: {DEFAULT_STRATEGY}]" in " ".join(text.split())
    named = inspect.signature(Client.subset).parameters["strategy"].default
    assert named == DEFAULT_STRATEGY
