"""What an operator does to a coordinator that serves: back it up, scrape it, look for faults."""

from __future__ import annotations

from typing import Any

from typer.testing import CliRunner

from lipt.coordinator.state.commands import app
from tests.cluster import Cluster
from tests.end_to_end.conftest import one_of_two_in


def state(*arguments: object) -> str:
    """`lipt state ARGUMENTS` in this process, beside the coordinator's; what it says."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return str(done.output)


def test_backup_of_a_coordinator_that_serves_goes_on_where_it_was_made(
    cluster: Cluster, small_run: dict[str, Any]
) -> None:
    directory, copy = cluster.state, cluster.directory / "copy"
    coordinator = cluster.start_coordinator()
    with one_of_two_in(cluster, small_run) as (client, run_id, worker):
        result = client.run(run_id).learners[0].result
        state("backup", copy, "--state-dir", directory)
        second = worker.take()
        worker.submit(second)
        expected = client.wait(run_id)
        collecting = ["-m", "lipt.trainer.cli", "state", "gc", "--state-dir", str(directory)]
        assert f"serving {cluster.address}" in cluster.start("gc", collecting).refused()
        state("check", "--state-dir", directory)
    assert coordinator.stop() == 0
    assert "1 runs" in state("check", "--state-dir", copy)

    restored = cluster.start_coordinator("--state-dir", str(copy))
    with cluster.client() as client:
        left = client.run(run_id).learners[0]
        assert (left.result, left.attempts) == (result, 1)
        worker = cluster.play_worker("other")
        again = worker.take()
        assert again.learner_index == second.learner_index
        worker.submit(again)
        final = client.wait(run_id)
        assert final.pretrained_weights == expected.pretrained_weights
    assert restored.stop() == 0
    cleaned = state("gc", "--min-age-hours", "0", "--state-dir", copy)
    assert "removed 1 files" in cleaned  # the shard of its last learner
    state("check", "--state-dir", copy)


def test_metrics_are_not_shown_to_other_machines_unasked(cluster: Cluster) -> None:
    cluster.address = "127.0.0.1:1"
    worker = cluster.start_worker("worker", "--metrics-listen", "[::]:0")
    assert "--metrics-listen [::]:0 is reachable from other machines" in worker.refused()
