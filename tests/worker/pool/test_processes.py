"""Processes that do not outlive who started them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from contextlib import suppress

import pytest

from lipt.worker.pool import Child

STUBBORN = "tests.worker.pool.stubborn"
# Starts one, says which as soon as it serves, and ends without a word to it.
ORPHANING = """
import os, time
from lipt.worker.pool import Child

def leave(_):
    print(child.pid, flush=True)
    os._exit(0)

environment = os.environ | {"PYTHONUNBUFFERED": "1"}
child = Child("http.server", ["0", "--bind", "127.0.0.1"], environment, leave)
time.sleep(60)
"""


def test_lines_are_passed_on_and_the_last_are_kept() -> None:
    lines: list[str] = []
    child = Child("calendar", ["2024", "2"], os.environ, lines.append)
    assert child.end(60.0) == 0
    assert child.tail().split() == "\n".join(lines).split()
    assert lines[0].strip() == "February 2024"


def test_who_does_not_end_in_time_is_killed() -> None:
    ready = threading.Event()
    child = Child(STUBBORN, [], os.environ, lambda _: ready.set())
    assert ready.wait(60.0)
    child.terminate()
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.05)
    assert child.end(0.05) == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's end")
def test_child_ends_with_its_parent() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ORPHANING], capture_output=True, text=True, check=True
    )
    pid = int(done.stdout.split()[0])
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    poll = select.poll()
    poll.register(process, select.POLLIN)
    try:
        assert poll.poll(20_000)
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, signal.SIGKILL)
        os.close(process)
