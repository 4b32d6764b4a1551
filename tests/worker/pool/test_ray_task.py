"""What runs on a node of Ray's, without Ray."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from lipt.worker.pool import ray_task
from lipt.worker.pool.children import Child
from lipt.worker.pool.ray_task import run_worker


@pytest.mark.slow
def test_worker_s_status_and_last_words_come_back(capfd: pytest.CaptureFixture[str]) -> None:
    status, tail = run_worker(["--coordinator", "no-port"], {"OMP_NUM_THREADS": "1"})
    assert status == 1
    assert "address 'no-port' is not host:port" in tail
    # Ray's own logs have it as well.
    assert tail in capfd.readouterr().err


def test_cancelled_task_lets_its_worker_end_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Child] = []

    class Cancelled(Child):
        def wait(self, seconds: float) -> int | None:
            if threading.current_thread() is threading.main_thread() and not started:
                started.append(self)
                os.kill(os.getpid(), signal.SIGINT)
            return super().wait(seconds)

    monkeypatch.setattr(ray_task, "Child", Cancelled)
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
