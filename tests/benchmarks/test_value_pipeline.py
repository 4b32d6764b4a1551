"""The pipeline of the bench of dirty data: it waits for its coordinator, and not for ever."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.processes import Children
from benchmarks.value.pipeline import wait_for_address
from lipt.common.errors import UnreachableError

pytestmark = pytest.mark.slow

SAYS = "import signal, sys; open(sys.argv[1], 'w').write('127.0.0.1:7\\n'); signal.pause()"
SILENT = "import signal; signal.pause()"


@pytest.fixture
def children(tmp_path: Path) -> Children:
    return Children(tmp_path, os.environ)


def test_the_address_is_what_the_coordinator_writes(children: Children, tmp_path: Path) -> None:
    file = tmp_path / "address"
    with children:
        children.start("coordinator", ["-c", SAYS, str(file)])
        assert wait_for_address(children, file, log=tmp_path / "log") == "127.0.0.1:7"


def test_a_coordinator_that_never_listens_is_given_up_with_its_log(
    children: Children, tmp_path: Path
) -> None:
    log = tmp_path / "coordinator.log"
    with children:
        children.start("coordinator", ["-c", SILENT])
        with pytest.raises(UnreachableError, match=f"after 0 s. See {log} for what it does"):
            wait_for_address(children, tmp_path / "address", log=log, seconds=0.0)
