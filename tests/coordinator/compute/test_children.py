from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from lipt.coordinator.compute import children
from tests import processes

SCRIPT = """
import tempfile
from lipt.coordinator.compute import children
children._PRELOADED.clear()
before = tempfile.gettempdir()
children.start_server()
assert tempfile.gettempdir() == before
"""


def test_the_server_starts_with_a_temporary_folder_too_long_for_a_socket(tmp_path: Path) -> None:
    folder = tmp_path / ("a-batch-job-s-own" * 5)
    folder.mkdir()
    ended = processes.run(["-c", SCRIPT], {**os.environ, "TMPDIR": str(folder)})
    assert ended.returncode == 0, ended.stderr


def test_the_server_is_started_without_waiting_for_torch() -> None:
    # It imports torch while the coordinator does: in turn a start would take seconds longer.
    script = "import sys, lipt.coordinator.compute.children; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_all_that_is_to_be_loaded_ahead_is_there() -> None:
    # The server passes over a module that it does not find.
    assert [name for name in children._PRELOADED if not importlib.util.find_spec(name)] == []
