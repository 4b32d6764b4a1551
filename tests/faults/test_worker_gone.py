"""A worker that dies, stands still or loses its network: another gets its learner."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import ExitStack
from time import monotonic
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.faults.conftest import Record
from tests.faults.proxy import Proxy

LEASE_SECONDS = 1.5
# So long that only the end of its worker can free the learner.
ENDLESS = {"num_learners": 1, "num_steps": 1_000_000, "batch_size": 64}
RUN = {"model": "resnet8", "soup": {"num_alphas": 1, "batch_norm_examples": 64}}


def killed(cluster: Cluster, stack: ExitStack) -> tuple[Callable[[], object], Callable[[], None]]:
    worker = cluster.start_worker("doomed")
    worker.wait_for("density")
    return lambda: worker.stop(signal.SIGKILL), lambda: None


def stopped(cluster: Cluster, stack: ExitStack) -> tuple[Callable[[], object], Callable[[], None]]:
    worker = cluster.start_worker("doomed")
    worker.wait_for("density")

    def wake() -> None:
        worker.send(signal.SIGCONT)
        # Its heartbeat is refused, and it drops what it has.
        worker.wait_for(r"lease with epoch 1 is over .* the result is not used")

    return lambda: worker.send(signal.SIGSTOP), wake


def cut_off(cluster: Cluster, stack: ExitStack) -> tuple[Callable[[], object], Callable[[], None]]:
    proxy = stack.enter_context(Proxy(cluster.address))
    direct, cluster.address = cluster.address, proxy.address
    worker = cluster.start_worker("doomed")
    cluster.address = direct
    worker.wait_for("density")

    def end() -> None:
        worker.stop(signal.SIGKILL)

    return proxy.freeze, end


@pytest.mark.parametrize(
    ("begin", "seconds_allowed"),
    [
        # On a machine that does other things, too, only the order of events is certain.
        pytest.param(killed, 60.0),
        pytest.param(stopped, 60.0),
        *(
            pytest.param(begin, LEASE_SECONDS + 1.0, marks=pytest.mark.faults)
            for begin in (killed, stopped, cut_off)
        ),
    ],
)
def test_learner_of_a_worker_that_is_gone_is_leased_to_another_within_its_lease_and_a_second(
    cluster: Cluster,
    begin: Callable[..., Any],
    seconds_allowed: float,
    record: Record,
) -> None:
    cluster.start_coordinator("--insecure", *cluster.leases_of(LEASE_SECONDS))
    with ExitStack() as stack, cluster.client() as client:
        run = client.start_run({**RUN, "learners": ENDLESS})
        vanish, afterwards = begin(cluster, stack)
        heir = cluster.play_worker("heir")
        vanish()
        gone = monotonic()
        assignment = heir.take()
        seconds = monotonic() - gone
        record(f"leased to another {seconds:.2f} s after, the lease is {LEASE_SECONDS} s")
        assert assignment.epoch == 2
        # The lease may have been renewed at the very moment, not later.
        assert seconds <= seconds_allowed
        afterwards()
        heir.submit(assignment)
        final = client.wait(run.run_id)
    assert final.learners[0].worker == "heir"
