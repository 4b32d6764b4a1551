import signal
import time
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest

from lipt.common.errors import LiptError
from lipt.common.states import RunState
from tests.blob_files import flip_a_bit
from tests.cluster import Cluster, LoggedProcess
from tests.faults.conftest import Record
from tests.faults.proxy import Proxy

DAY_SECONDS = 86_400
STOP_LEASE_SECONDS = 3.0


def run_of(num_learners: int = 2, **learners: Any) -> dict[str, Any]:
    return {
        "model": "resnet8",
        "learners": {
            "num_learners": num_learners,
            "num_steps": 1,
            "num_minibatches": 1,
            "batch_size": 32,
            **learners,
        },
        "soup": {"batch_norm_examples": 64},
    }


def start_coordinator(cluster: Cluster, *flags: str, clock: int = 0) -> LoggedProcess:
    """A coordinator whose clock is `clock` seconds off."""
    set_clock(cluster, clock)
    offset = str(cluster.directory / "offset")
    program = ["-m", "tests.faults.jumping_coordinator", offset, "--"]
    return cluster.start_coordinator(*flags, program=program)


def set_clock(cluster: Cluster, seconds: int) -> None:
    new = cluster.directory / "offset.new"
    new.write_text(str(seconds))
    new.replace(cluster.directory / "offset")


@pytest.mark.timeout(120)
def test_setting_the_clock_back_extends_no_lease(cluster: Cluster) -> None:
    start_coordinator(cluster, *cluster.leases_of(1.5))
    with cluster.client() as client:
        client.start_run(run_of(1))
        silent, heir = (cluster.play_worker(name) for name in ("silent", "heir"))
        silent.take()
        set_clock(cluster, -DAY_SECONDS)
        assert heir.take().epoch == 2


@pytest.mark.timeout(180)
def test_a_clock_that_jumps_by_hours_changes_no_run_lease_or_valid_token(cluster: Cluster) -> None:
    flags = cluster.config(
        "[lease]\nduration_seconds = 3000.0\n"
        "[storage]\nkeep_days = 1\ncollect_every_seconds = 0.1\n"
    )
    coordinator = start_coordinator(cluster, *flags)
    with cluster.client() as client:
        token = client.create_token("worker", name="w", days=1.0).secret
        before = client.start_run(run_of(1, deadline_seconds=3600), name="before")
        worker = cluster.play_worker("w", token=token)
        worker.submit(worker.take())
        expected = client.wait(before.run_id)
        run = client.start_run(run_of(3, deadline_seconds=3600), name="jumps")
        for hours in (6, -6, 12):
            assignment = worker.take()
            set_clock(cluster, hours * 3600)
            worker.submit(assignment)
        final = client.wait(run.run_id)
        assert [learner.attempts for learner in final.learners] == [1, 1, 1]
        # Ends by the clock on the wall, and only by it.
        set_clock(cluster, 2 * DAY_SECONDS)
        with pytest.raises(LiptError, match="has expired"):
            cluster.play_worker("late", token=token)
        subset = client.subset("jumps", "grand", fraction=0.1)
    assert coordinator.stop() == 0
    # Started again yesterday.
    start_coordinator(cluster, *flags, clock=-DAY_SECONDS)
    with cluster.client() as client:
        assert [run.name for run in client.runs()] == ["jumps", "before"]
        assert client.run("before").pretrained_weights == expected.pretrained_weights
        assert client.subset("jumps", "grand", fraction=0.1).digest == subset.digest
        again = client.start_run(run_of(1), name="yesterday")
        worker = cluster.play_worker("w", token=token)
        worker.submit(worker.take())
        assert client.wait(again.run_id).state is RunState.READY


def test_leases_survive_a_longer_stop_of_the_coordinator(cluster: Cluster) -> None:
    coordinator = cluster.start_coordinator(*cluster.leases_of(STOP_LEASE_SECONDS))
    with cluster.client() as client:
        run = client.start_run(run_of())
        workers = [cluster.play_worker(name) for name in ("one", "two")]
        taken = [worker.take() for worker in workers]
        coordinator.send(signal.SIGSTOP)
        time.sleep(STOP_LEASE_SECONDS + 2.0)  # the stop itself, which only time makes long
        coordinator.send(signal.SIGCONT)
        coordinator.wait_for("event=paused")
        for worker, assignment in zip(workers, taken, strict=True):
            worker.submit(assignment)
        final = client.wait(run.run_id)
    assert [learner.attempts for learner in final.learners] == [1, 1]
    assert [learner.worker for learner in final.learners] == ["one", "two"]
    assert "lease_expired" not in coordinator.text()


LEASE_SECONDS = 1.5

VANISHING: dict[str, Callable[[LoggedProcess, Proxy], object]] = {
    "killed": lambda worker, _: worker.stop(signal.SIGKILL),
    "stopped": lambda worker, _: worker.send(signal.SIGSTOP),
    "cut off": lambda _, network: network.freeze(),
}


@pytest.mark.parametrize(
    ("how", "seconds_allowed"),
    [
        # On a machine that does other things, too, only the order of events is certain.
        ("killed", 60.0),
        ("stopped", 60.0),
        *(pytest.param(how, LEASE_SECONDS + 1.0, marks=pytest.mark.faults) for how in VANISHING),
    ],
)
def test_a_lost_worker_s_learner_is_leased_again_in_time(
    cluster: Cluster, how: str, seconds_allowed: float, record: Record
) -> None:
    cluster.start_coordinator("--insecure", *cluster.leases_of(LEASE_SECONDS))
    with Proxy(cluster.address) as network, cluster.client() as client:
        # So long that only the end of its worker can free the learner.
        run = client.start_run(run_of(1, num_steps=1_000_000, batch_size=64))
        direct, cluster.address = cluster.address, network.address
        worker = cluster.start_worker("doomed")
        cluster.address = direct
        worker.wait_for("density")
        heir = cluster.play_worker("heir")
        VANISHING[how](worker, network)
        gone = monotonic()
        assignment = heir.take()
        seconds = monotonic() - gone
        record(f"leased to another {seconds:.2f} s after, the lease is {LEASE_SECONDS} s")
        assert assignment.epoch == 2
        # The lease may have been renewed at the very moment, not later.
        assert seconds <= seconds_allowed
        if how == "stopped":
            worker.send(signal.SIGCONT)
            # Its heartbeat is refused, and it drops what it has.
            worker.wait_for(r"lease with epoch 1 is over .* the result is not used")
        worker.stop(signal.SIGKILL)
        heir.submit(assignment)
        final = client.wait(run.run_id)
    assert final.learners[0].worker == "heir"


@pytest.mark.smoke
def test_theta_star_and_shards_that_were_damaged_are_made_again_after_a_restart(
    cluster: Cluster,
) -> None:
    coordinator = cluster.start_coordinator()
    with cluster.client() as client:
        run = client.start_run(run_of())
        coordinator.wait_for(": training")
        run = client.run(run.run_id)
    coordinator.stop(signal.SIGKILL)
    # All that there is by now.
    for path in cluster.state.glob("blobs/??/*"):
        flip_a_bit(path, path.stat().st_size // 2)
    coordinator = cluster.start_coordinator()
    coordinator.wait_for("3 files of run .* are damaged and recomputed")
    cluster.start_worker("worker")
    with cluster.client() as client:
        disturbed = client.wait(run.run_id)
        undisturbed = client.wait(client.start_run(run_of()).run_id)
    assert disturbed.initial_weights == run.initial_weights
    assert disturbed.pretrained_weights == undisturbed.pretrained_weights
