from __future__ import annotations

import subprocess
import sys

import pytest

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
    ["doctor"],
    ["train"],
]

# Prints which of the slow packages the help has imported. pydantic is typer's own choice.
SCRIPT = """
import sys
from lipt.trainer.cli import main
try:
    main(sys.argv[1:], prog_name="lipt")
finally:
    slow = {"torch", "grpc", "google.protobuf", "numpy", "rich.console"} & set(sys.modules)
    print(f"slow={sorted(slow)}", file=sys.stderr)
"""


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_imports_nothing_slow(command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *command, "--help"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert " ".join(["Usage: lipt", *command]) in done.stdout
    assert done.stderr == "slow=[]\n"
