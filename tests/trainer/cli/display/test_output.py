from __future__ import annotations

import subprocess
import sys

import pytest

from lipt.trainer.cli.display.output import leaving

pytestmark = pytest.mark.slow

# The main thread gives up while torch computes behind it.
SCRIPT = """
import sys
import torch
from lipt.trainer.cli.display.output import leaving
from lipt.trainer.cli.display.output import in_background
def endless():
    values = torch.randn(400, 400)
    while True:
        yield
        for _ in range(10**9):
            values = (values @ values).tanh()

torch.set_num_threads(1)
with leaving():
    for _ in in_background(endless(), tick_seconds=0.01):
        print("leaving", flush=False)
        {leave}
"""


@pytest.mark.parametrize(
    ("leave", "status", "said"),
    [
        ("raise SystemExit(3)", 3, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit('it is over')", 1, "it is over\n"),
        ("raise ValueError('mine')", 1, "ValueError: mine\n"),
    ],
)
def test_a_thread_in_the_background_does_not_change_how_a_command_ends(
    leave: str, status: int, said: str
) -> None:
    command = [sys.executable, "-c", SCRIPT.format(leave=leave)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    assert done.stdout == "leaving\n"
    assert done.stderr.endswith(said)
    assert "terminate" not in done.stderr


def test_without_one_an_exception_is_what_it_was() -> None:
    with pytest.raises(SystemExit, match="3"), leaving():
        raise SystemExit(3)
