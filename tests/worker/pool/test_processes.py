import os
import select
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lipt.common.config.settings import load_settings
from lipt.common.errors import ConfigError
from lipt.worker.pool import Child, pool
from lipt.worker.pool.pool import Ended, RayEngine, run_worker
from lipt.worker.settings import PoolSettings

STUBBORN = "tests.worker.pool.test_processes"
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


def test_output_lines_are_passed_on_and_the_last_kept() -> None:
    lines: list[str] = []
    child = Child("calendar", ["2024", "2"], os.environ, lines.append)
    assert child.end(60.0) == 0
    assert child.tail().split() == "\n".join(lines).split()
    assert lines[0].strip() == "February 2024"


def test_a_child_that_does_not_end_is_killed() -> None:
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


RayError = type("RayError", (Exception,), {})
TaskCancelledError = type("TaskCancelledError", (RayError,), {})
RayTaskError = type("RayTaskError", (RayError,), {})


class FakeRay:
    exceptions = SimpleNamespace(
        RayError=RayError, TaskCancelledError=TaskCancelledError, RayTaskError=RayTaskError
    )
    util = SimpleNamespace(get_node_ip_address=lambda: "10.0.0.1")

    def __init__(self, *nodes: str) -> None:
        self.addresses = nodes
        self.options: dict[str, Any] = {}
        self.tasks: list[tuple[list[str], dict[str, str]]] = []
        self.done: dict[int, Any] = {}
        self.cancelled: list[int] = []
        self.is_shut_down = False

    def init(self, **options: Any) -> None:
        self.given = options

    def remote(self, _: Any) -> Any:
        def with_options(**options: Any) -> Any:
            self.options = options
            return SimpleNamespace(remote=self._start)

        return SimpleNamespace(options=with_options)

    def _start(self, arguments: list[str], environment: dict[str, str]) -> int:
        self.tasks.append((arguments, environment))
        return len(self.tasks) - 1

    def nodes(self) -> list[dict[str, Any]]:
        return [{"NodeManagerAddress": address, "Alive": True} for address in self.addresses]

    def wait(self, tasks: list[int], **_: Any) -> tuple[list[int], list[int]]:
        return [task for task in tasks if task in self.done], []

    def get(self, task: int) -> Any:
        if isinstance(outcome := self.done[task], Exception):
            raise outcome
        return outcome

    def cancel(self, task: int) -> None:
        self.cancelled.append(task)

    def shutdown(self) -> None:
        self.is_shut_down = True


def connect(monkeypatch: pytest.MonkeyPatch, fake: FakeRay, **options: Any) -> RayEngine:
    monkeypatch.setattr(pool, "import_extra", lambda *_, **__: fake)
    flags = {"coordinator": "head:1", "ray": "auto", **options}
    return RayEngine(load_settings(PoolSettings, config=None, flags=flags))


def test_ray_gets_a_worker_s_resources_and_retries(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = FakeRay()
    taken = {"gpus_per_worker": 0.5, "cpus_per_worker": 2.0, "resources": ("spot=1",)}
    engine = connect(monkeypatch, fake, **taken, token="t", working_dir=tmp_path)
    assert fake.given["runtime_env"] == {"working_dir": str(tmp_path)}
    engine.start(0, ["--coordinator", "head:1"])
    assert (fake.options["num_gpus"], fake.options["num_cpus"]) == (0.5, 2.0)
    assert fake.options["resources"] == {"spot": 1.0}
    assert fake.options["max_retries"] == -1
    assert fake.options["scheduling_strategy"] == "SPREAD"
    assert fake.tasks == [(["--device", "cuda", "--coordinator", "head:1"], {"LIPT_TOKEN": "t"})]


def test_a_ray_task_ends_with_its_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRay()
    engine = connect(monkeypatch, fake)
    for number in range(5):
        engine.start(number, [])
    fake.done = {
        0: (3, "last words"),
        1: TaskCancelledError(),
        2: RayTaskError("No module named 'lipt'"),
        3: RayError("its owner is gone"),
    }
    assert engine.ended() == [
        Ended(0, 3, "last words"),
        Ended(1, 0),
        Ended(2, 1, "No module named 'lipt'"),
        Ended(3, None, "its owner is gone"),
    ]
    assert engine.ended() == []
    engine.close()
    assert fake.cancelled == [4]
    assert fake.is_shut_down


@pytest.mark.parametrize("coordinator", ["127.0.0.1:50051", "localhost:50051"])
def test_loopback_address_is_refused_where_nodes_are_elsewhere(
    coordinator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = FakeRay("10.0.0.1", "10.0.0.2")
    with pytest.raises(ConfigError, match=r"nodes on 10\.0\.0\.2\. .* --listen on 0\.0\.0\.0"):
        connect(monkeypatch, nodes, coordinator=coordinator)
    connect(monkeypatch, nodes)


def test_cancelled_task_lets_its_worker_end_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Child] = []

    class Cancelled(Child):
        def poll(self) -> int | None:
            if threading.current_thread() is threading.main_thread() and not started:
                started.append(self)
                os.kill(os.getpid(), signal.SIGINT)
            return super().poll()

    monkeypatch.setattr(pool, "Child", Cancelled)
    # As a script has it that starts Ray in the background.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        status, _ = run_worker(["--coordinator", "127.0.0.1:1"], {})
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    # Where it was still starting, the signal itself ended it.
    assert status in (0, -signal.SIGTERM)
    assert started[0].poll() == status


if __name__ == "__main__":  # a program that SIGTERM does not end
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("ready", flush=True)  # noqa: T201 - who started it waits for that
    while True:
        signal.pause()
