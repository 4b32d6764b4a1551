"""What an operator does to a coordinator that serves: back it up, scrape it, look for faults."""

from __future__ import annotations

import urllib.request
from typing import Any

import pytest

from lipt.common.errors import UnknownRunError
from lipt.common.rpc.channel import open_channel
from lipt.common.states import RunState
from tests.end_to_end.cluster import Cluster, LoggedProcess
from tests.end_to_end.stub_worker import StubWorker, one_of_two_in


def state(cluster: Cluster, *arguments: object) -> LoggedProcess:
    """Run `lipt state ARGUMENTS` to its end."""
    command = ["-m", "lipt.coordinator.state", *map(str, arguments)]
    process = cluster.start(f"state-{arguments[0]}", command)
    process.wait()
    return process


def test_backup_of_a_coordinator_that_serves_goes_on_where_it_was_made(
    cluster: Cluster, small_run: dict[str, Any]
) -> None:
    directory, copy = cluster.directory / "state", cluster.directory / "copy"
    coordinator = cluster.start_coordinator()
    with one_of_two_in(cluster, small_run) as (client, run_id, worker):
        result = client.run(run_id).learners[0].result
        made = state(cluster, "backup", copy, "--state-dir", directory)
        assert made.process.returncode == 0, made.text()
        second = worker.take()
        worker.submit(second, worker.learner(second))
        expected = client.wait(run_id)
        refused = state(cluster, "gc", "--state-dir", directory)
        assert refused.process.returncode == 1
        assert f"serving {cluster.address}" in refused.text()
        assert "Traceback" not in refused.text()
        whole = state(cluster, "check", "--state-dir", directory)
        assert whole.process.returncode == 0, whole.text()
    assert coordinator.stop() == 0
    checked = state(cluster, "check", "--state-dir", copy)
    assert checked.process.returncode == 0, checked.text()
    assert "1 runs" in checked.text()

    restored = cluster.start_coordinator("--state-dir", str(copy))
    with cluster.client() as client, open_channel(cluster.address) as channel:
        left = client.run(run_id).learners[0]
        assert (left.result, left.attempts) == (result, 1)
        worker = StubWorker(cluster.directory, channel, "other")
        again = worker.take()
        assert again.learner_index == second.learner_index
        worker.submit(again, worker.learner(again))
        final = client.wait(run_id)
        assert final.state is RunState.READY, final.message
        assert final.pretrained_weights == expected.pretrained_weights
    assert restored.stop() == 0
    cleaned = state(cluster, "gc", "--min-age-hours", "0", "--state-dir", copy)
    assert "removed 1 files" in cleaned.text()  # the shard of its last learner
    assert state(cluster, "check", "--state-dir", copy).process.returncode == 0


def test_refusals_and_reassignments_are_counted_and_logged(
    cluster: Cluster, small_run: dict[str, Any]
) -> None:
    pytest.importorskip("prometheus_client")
    coordinator = cluster.start_coordinator("--metrics-listen", "127.0.0.1:0")
    address = coordinator.wait_for(r"metrics on (\S+)/metrics")[1]
    learners = {**small_run["learners"], "num_learners": 1}
    with cluster.client() as client, open_channel(cluster.address) as channel:
        run = client.start_run({**small_run, "learners": learners})
        with pytest.raises(UnknownRunError):
            client.run("nobody")
        worker = StubWorker(cluster.directory, channel, "w")
        worker.coordinator.release(worker.worker_id, worker.take())
        worker.coordinator.release(worker.worker_id, worker.take(), "my disk is full\nevent=x")
        again = worker.take()
        worker.submit(again, worker.learner(again))
        client.wait(run.run_id)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{address}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    for line in (
        'lipt_events_total{detail="UNKNOWN_RUN",event="call_refused"} 1.0',
        'lipt_events_total{detail="",event="learner_returned"} 1.0',
        'lipt_events_total{detail="",event="learner_failed"} 1.0',
        'lipt_events_total{detail="",event="learner_reassigned"} 2.0',
        'lipt_events_total{detail="ready",event="run_ended"} 1.0',
        'lipt_runs{state="ready"} 1.0',
        "lipt_workers 1.0",
        "lipt_leases 0.0",
    ):
        assert line in lines
    log = coordinator.text()
    assert "event=call_refused detail=UNKNOWN_RUN method=/lipt.v1.RunService/GetRun" in log
    assert (
        r'event=learner_failed run=run-1 learner=0 worker=w reason="my disk is full\nevent=x"'
        in log
    )
    assert "event=learner_reassigned run=run-1 learner=0 worker=w" in log
    assert coordinator.stop() == 0


def test_metrics_are_not_shown_to_other_machines_unasked(cluster: Cluster) -> None:
    flags = ["--data", "digits", "--listen", "127.0.0.1:0", "--metrics-listen", "0.0.0.0:0"]
    refused = cluster.start(
        "refused",
        ["-m", "lipt.coordinator", *flags, "--state-dir", str(cluster.directory / "state")],
    )
    assert refused.wait() == 1
    assert "--metrics-listen 0.0.0.0:0 is reachable from other machines" in refused.text()
    worker = ["-m", "lipt.worker", "--coordinator", "127.0.0.1:1", "--metrics-listen", "[::]:0"]
    refused = cluster.start("refused-worker", worker)
    assert refused.wait() == 1
    assert "--metrics-listen [::]:0 is reachable from other machines" in refused.text()
