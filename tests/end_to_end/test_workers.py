from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from lipt.common.states import LearnerState, RunState
from tests.cluster import SMALL_RUN, Cluster


def test_worker_of_a_batch_system_says_by_its_status_whether_its_share_is_done(
    cluster: Cluster,
) -> None:
    cluster.start_coordinator()
    learners = {**SMALL_RUN["learners"], "num_learners": 1}
    batch = ("--max-learners", "1", "--stopped-status", "143")
    with cluster.client() as client:
        told = cluster.start_worker("told", *batch)
        told.wait_for("joined")
        assert told.stop() == 143
        client.start_run({**SMALL_RUN, "learners": learners})
        assert cluster.start_worker("done", *batch).wait() == 0
        client.wait()


def test_worker_that_was_first_joins_when_the_coordinator_comes_up(cluster: Cluster) -> None:
    with socket.socket() as taken:  # nobody else gets the port meanwhile, and nobody listens
        taken.bind(("127.0.0.1", 0))
        cluster.address = "{}:{}".format(*taken.getsockname())
        worker = cluster.start_worker("early")
        worker.wait_for("Trying again until")
    cluster.start_coordinator("--listen", cluster.address).wait_for("worker early .* joined")
    assert worker.stop() == 0


def test_worker_that_allows_a_module_which_it_lacks_says_so_at_its_start(cluster: Cluster) -> None:
    cluster.address = "127.0.0.1:1"
    worker = cluster.start_worker("vm", "--allow-module", "absent_module")
    assert "lipt-worker: --allow-module absent_module: there is no module" in worker.refused()


# The script, for a command that is plugged in is found by what is installed.
UP = (str(Path(sys.executable).with_name("lipt")), "up")


def test_up_s_workers_come_with_a_run_and_go_after_it_and_ctrl_c_ends_the_rest(
    cluster: Cluster,
) -> None:
    flags = ["--data", "digits", "--model", "resnet8", "--listen", "127.0.0.1:0"]
    flags += ["--state-dir", str(cluster.state), "--workers", "2", "--idle-seconds", "1"]
    cache = ["--", "--cache-dir", str(cluster.directory / "cache")]
    up = cluster.start("up", [*UP, *flags, *cache])
    cluster.address = up.wait_for(r"lipt serves digits on (\S+), for up to 2 workers")[1]
    up.wait_for(f"lipt run start --watch --coordinator {cluster.address}")
    assert len(up.children()) == 1  # no worker before there are learners
    with cluster.client() as client:
        client.wait(client.start_run(SMALL_RUN).run_id)
    up.wait_for("starting 2 workers: learners: 4")
    up.wait_for("; 0 workers left|ending [12] workers?: there is no learner")
    assert up.stop(signal.SIGINT) == 0
    assert "coordinator | " in up.text()
    assert "worker 0 | " in up.text()
    assert "Traceback" not in up.text()


def test_up_ends_with_its_coordinator(cluster: Cluster) -> None:
    flags = ["--data", "digits", "--listen", "127.0.0.1:0", "--state-dir", str(cluster.state)]
    up = cluster.start("up", [*UP, *flags])
    up.wait_for("lipt serves digits")
    for child in up.children():
        os.kill(child, signal.SIGKILL)
    assert "the coordinator has ended with status -9" in up.refused()


# Long enough for one commit on a busy machine.
DEADLINE_SECONDS = 20.0


@pytest.mark.parametrize(
    # How much later it is is for the machine to say; tests/coordinator/runs/test_driver.py shows
    # with a clock of its own that the service means to be on time.
    "late_seconds",
    [60.0, pytest.param(1.0, marks=pytest.mark.faults)],
)
def test_run_goes_on_at_its_deadline_without_the_dead_and_the_slow(
    cluster: Cluster, late_seconds: float
) -> None:
    cluster.start_coordinator(*cluster.leases_of(3.0))
    slow = cluster.start_worker("slow")
    slow.wait_for("joined")
    # So long that only its deadline can end it.
    learners: dict[str, Any] = {"num_learners": 3, "num_steps": 100_000, "batch_size": 32}
    learners |= {"deadline_seconds": DEADLINE_SECONDS, "min_learners": 1}
    with cluster.client() as client:
        quick, dead = (cluster.play_worker(name) for name in ("quick", "dead"))
        run = client.start_run({**SMALL_RUN, "learners": learners})
        slow.wait_for("density")
        dead.take()
        first = quick.take()
        quick.submit(first)
        (final,) = (view for view in client.watch(run.run_id) if view.ended)
        slow.wait_for("is no longer needed")
    assert final.state is RunState.READY, final.message
    assert final.learners[first.learner_index].state is LearnerState.DONE
    dropped = [item for item in final.learners if item.index != first.learner_index]
    assert {item.state for item in dropped} == {LearnerState.DROPPED}
    assert all("the deadline of 20 s has passed with 1 of 3" in item.message for item in dropped)
    assert final.costs is not None
    assert 0.0 <= final.costs.training_seconds - DEADLINE_SECONDS <= late_seconds
