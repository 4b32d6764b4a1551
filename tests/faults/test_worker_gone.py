"""A worker that dies, stands still or loses its network: another gets its learner."""

from __future__ import annotations

import signal
from collections.abc import Callable
from time import monotonic

import pytest

from tests.cluster import Cluster, LoggedProcess
from tests.faults.conftest import Record
from tests.faults.proxy import Proxy

LEASE_SECONDS = 1.5
# So long that only the end of its worker can free the learner.
ENDLESS = {"num_learners": 1, "num_steps": 1_000_000, "batch_size": 64}
RUN = {"model": "resnet8", "soup": {"num_alphas": 1, "batch_norm_examples": 64}}


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
def test_learner_of_a_worker_that_is_gone_is_leased_to_another_within_its_lease_and_a_second(
    cluster: Cluster, how: str, seconds_allowed: float, record: Record
) -> None:
    cluster.start_coordinator("--insecure", *cluster.leases_of(LEASE_SECONDS))
    with Proxy(cluster.address) as network, cluster.client() as client:
        run = client.start_run({**RUN, "learners": ENDLESS})
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
