from __future__ import annotations

import os
from pathlib import Path

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
