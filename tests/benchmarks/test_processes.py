import os
from contextlib import suppress
from pathlib import Path

import pytest

from benchmarks.processes import Children
from lipt.common.errors import ProcessEndedError

SLEEP = "import signal; signal.pause()"
# Opening a FIFO for writing waits for its reader: the test knows that the child is ready.
STUBBORN = """
import signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1], "w").close()
while True:
    signal.pause()
"""


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, None])
def test_children_end_with_the_block(tmp_path: Path, error: type[BaseException] | None) -> None:
    pids: list[int] = []
    with suppress(KeyboardInterrupt, ValueError), Children(tmp_path, os.environ) as children:
        pids += [children.start(f"child-{number}", ["-c", SLEEP]) for number in (1, 2)]
        children.check()
        assert not any(is_gone(pid) for pid in pids)
        if error is not None:
            raise error
    assert all(is_gone(pid) for pid in pids)


def test_a_hanging_child_is_killed_and_a_dead_child_is_reported(tmp_path: Path) -> None:
    fifo = tmp_path / "ready"
    os.mkfifo(fifo)
    with Children(tmp_path, os.environ, stop_seconds=0.1) as children:
        pid = children.start("stubborn", ["-c", STUBBORN, str(fifo)])
        fifo.read_text()
    assert is_gone(pid)
    script = "import os, sys; print('no space left'); sys.stdout.flush(); open(sys.argv[1], 'w')"
    with Children(tmp_path, os.environ) as children:
        pid = children.start("worker-1", ["-c", f"{script}; os._exit(3)", str(fifo)])
        fifo.read_text()
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(ProcessEndedError, match=r"worker-1 has ended with status 3") as caught:
            children.check()
    assert str(caught.value).endswith("ends with:\n    no space left")
