"""Forks of the template process, beside the fresh interpreters that they stand in for."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests import processes

PROGRAM = """
import os, sys
print(__name__, sys.argv[1:], os.getcwd(), os.environ["COLOUR"], "HOME" in os.environ)
print("to standard error", file=sys.stderr)
sys.exit(7)
"""


@pytest.mark.parametrize("fresh", [True, False])
def test_a_fork_has_its_own_arguments_environment_folder_output_and_status(
    tmp_path: Path, fresh: bool
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    program = str(tmp_path / "program.py")
    done = processes.run([program, "a", "b"], {"COLOUR": "red"}, folder=tmp_path, fresh=fresh)
    assert done.stdout == f"__main__ ['a', 'b'] {tmp_path} red False\n"
    assert done.stderr == "to standard error\n"
    assert done.returncode == 7


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_fork_dies_of_signals(tmp_path: Path, number: int) -> None:
    (tmp_path / "waiting.py").write_text("import signal\nprint('up', flush=True)\nsignal.pause()")
    reading, writing = os.pipe()
    process = processes.start(
        [str(tmp_path / "waiting.py")], os.environ, output=writing, errors=writing
    )
    os.close(writing)
    with os.fdopen(reading) as output:
        assert output.readline() == "up\n"
        assert process.poll() is None
        process.send_signal(number)
        assert process.wait() == process.returncode == -number
        assert output.read() == ""


def test_a_forked_coordinator_has_a_fork_server_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "computing.py").write_text(
        "import os\n"
        "from lipt.coordinator.compute.children import start_child\n"
        "def say(parent):\n"
        "    print(os.getppid() != parent, os.environ['COLOUR'], flush=True)\n"
        "if __name__ == '__main__':\n"
        "    start_child(say, (os.getpid(),), 'child').join()\n"
    )
    environment = {"COLOUR": "red", "PYTHONPATH": str(tmp_path), "PATH": os.environ["PATH"]}
    done = processes.run(["-m", "computing"], environment)
    assert done.stdout == "True red\n", done.stderr
