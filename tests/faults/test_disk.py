import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lipt import Client
from lipt.common.errors import CorruptBlobError, UnknownRunError
from lipt.common.states import RunState
from tests.cluster import Cluster
from tests.end_to_end.conftest import one_of_two_in, small_run
from tests.end_to_end.test_state import state


def back_up(cluster: Cluster, copy: Path, *, most_bytes: int) -> subprocess.CompletedProcess[str]:
    """Run `lipt state backup` where no file grows beyond a size."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))

    command = [sys.executable, "-m", "lipt.cli", "state", "backup", str(copy)]
    return subprocess.run(
        [*command, "--state-dir", str(cluster.state)],
        preexec_fn=limit,
        # `make coverage` would write files of its own there.
        env={name: value for name, value in os.environ.items() if "COVERAGE" not in name},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_disk_that_fills_up_in_a_backup_leaves_none_and_the_state_as_it_was(
    cluster: Cluster,
) -> None:
    cluster.start_coordinator()
    with one_of_two_in(cluster) as (client, run_id, worker):
        copy = cluster.directory / "backups" / "copy"
        largest = max(path.stat().st_size for path in cluster.state.glob("blobs/*/*"))
        database = (cluster.state / "lipt.db").stat().st_size
        assert database < largest - 1
        # In the middle of the database, and of the largest blob.
        for most, words in ((4096, "the database could not be copied"), (largest - 1, "File")):
            full = back_up(cluster, copy, most_bytes=most)
            assert (full.returncode, full.stdout) == (1, "")
            assert words in full.stderr
            assert "Free space there" in full.stderr
            assert len(full.stderr.splitlines()) == 1
            assert list(copy.parent.iterdir()) == []
        state("check", "--state-dir", cluster.state)
        worker.submit(worker.take())
        ready = client.wait(run_id)
        assert back_up(cluster, copy, most_bytes=2**30).returncode == 0
    assert "no problems" in state("check", "--state-dir", copy)
    cluster.start_coordinator("--state-dir", str(copy))
    with cluster.client() as client:
        assert client.run(run_id).pretrained_weights == ready.pretrained_weights


def ready_run(client: Client, cluster: Cluster, seed: int) -> str:
    started = client.start_run({**small_run(num_learners=1), "seed": seed})
    worker = cluster.play_worker(f"worker-{seed}")
    worker.submit(worker.take())
    return client.wait(started.run_id).run_id


def test_an_older_database_under_newer_blobs_serves_what_it_knows(cluster: Cluster) -> None:
    coordinator = cluster.start_coordinator()
    copy = cluster.directory / "copy"
    with cluster.client() as client:
        first = ready_run(client, cluster, 0)
        subset = client.subset(first, "grand", fraction=0.1)
        state("backup", copy, "--state-dir", cluster.state)
        second = ready_run(client, cluster, 1)
        client.subset(first, "el2n", fraction=0.1)
    assert coordinator.stop() == 0
    for path in cluster.state.glob("lipt.db*"):
        path.unlink()
    shutil.copyfile(copy / "lipt.db", cluster.state / "lipt.db")
    checked = state("check", "--state-dir", cluster.state)
    assert "1 runs, 1 subsets" in checked
    # theta*, shard, learner and theta_p of the second run, and the second subset.
    assert "; 5 in no record), no problems" in checked
    coordinator = cluster.start_coordinator()
    with cluster.client() as client:
        assert [run.run_id for run in client.runs()] == [first]
        with pytest.raises(UnknownRunError):
            client.run(second)
        assert client.subset(first, "grand", fraction=0.1) == subset
        # Made anew, to the bit.
        again = ready_run(client, cluster, 1)
        assert client.weights(again)
    assert coordinator.stop() == 0
    # The second subset was not asked for again.
    assert "; 1 in no record), no problems" in state("check", "--state-dir", cluster.state)


def test_a_newer_database_over_older_blobs_repairs_what_can_be_made_again(cluster: Cluster) -> None:
    coordinator = cluster.start_coordinator()
    copy = cluster.directory / "copy"
    with cluster.client() as client:
        first = ready_run(client, cluster, 0)
        state("backup", copy, "--state-dir", cluster.state)
        subset = client.subset(first, "grand", fraction=0.1)
        lost = ready_run(client, cluster, 1)
        training = client.start_run({**small_run(num_learners=2), "seed": 2}).run_id
        worker = cluster.play_worker("early")
        worker.submit(worker.take())
    assert coordinator.stop() == 0
    shutil.rmtree(cluster.state / "blobs")
    shutil.copytree(copy / "blobs", cluster.state / "blobs")
    coordinator = cluster.start_coordinator()
    with cluster.client() as client:
        # The subset's file is made again.
        assert client.subset(first, "grand", fraction=0.1).digest == subset.digest
        # Nothing is left of this run's theta_p and learner.
        for ask in (client.weights, lambda run: client.subset(run, "grand", fraction=0.1)):
            with pytest.raises(CorruptBlobError, match="theta_p of run run-2 is lost, and so are"):
                ask(lost)
        # This one's learner is trained again, before the soup.
        coordinator.wait_for(r"files of run run-3 are damaged and recomputed")
        worker = cluster.play_worker("late")
        for _ in range(2):
            worker.submit(worker.take())
        final = client.wait(training)
        assert final.state is RunState.READY
        assert sorted(learner.attempts for learner in final.learners) == [1, 2]
    assert "event=learner_damaged" in coordinator.text()
