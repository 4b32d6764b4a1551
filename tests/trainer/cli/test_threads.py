"""How threads wait is decided by each command that trains, before torch is loaded."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

DATA = ("--data", "digits-train", "--model", "resnet8")

# Ends where torch would be loaded, and prints what is decided by then.
SCRIPT = """
import os, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print(os.environ.get("OMP_WAIT_POLICY"), flush=True)
            os._exit(0)

sys.meta_path.insert(0, Watch())
from lipt.trainer.cli import main
main(sys.argv[1:], prog_name="lipt")
"""


@pytest.mark.parametrize(
    ("command", "chosen", "found"),
    [
        (("train",), {}, "PASSIVE"),
        (("train", "--strategy", "craig", "--fraction", "0.1"), {}, "PASSIVE"),
        (("compare", "--test", "digits-test", "--strategies", "craig"), {}, "PASSIVE"),
        (("train",), {"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE"),
    ],
)
def test_threads_wait_without_spinning_unless_the_user_says_otherwise(
    command: tuple[str, ...], chosen: dict[str, str], found: str
) -> None:
    inherited = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *command, *DATA],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=inherited | chosen,
    )
    assert done.stdout == f"{found}\n", done.stderr
