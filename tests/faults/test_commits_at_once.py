"""Learners of 45 MB that are handed in at the same moment: they are checked a few at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Barrier

import pytest

from lipt.common.states import LearnerState
from tests.cluster import Cluster
from tests.faults.conftest import Record
from tests.faults.memory import reset_peak, resident_bytes

NUM_LEARNERS = 10
MAX_GROWTH_BYTES = 300_000_000


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_memory_stays_bounded_while_ten_large_learners_are_committed_at_once(
    cluster: Cluster, record: Record
) -> None:
    # Nobody sends heartbeats while ten learners are made on a busy machine.
    coordinator = cluster.start_coordinator("--model", "resnet18", *cluster.leases_of(900.0))
    pid = coordinator.process.pid
    together = Barrier(NUM_LEARNERS, action=lambda: reset_peak(pid))

    def work(number: int) -> int:
        worker = cluster.play_worker(f"worker-{number}")
        assignment = worker.take()
        result = worker.upload(worker.learner(assignment, factor=1.0 + number / 100))
        together.wait()
        before = resident_bytes(pid)
        worker.commit(assignment, result)
        return before

    learners = {"num_learners": NUM_LEARNERS + 1, "batch_size": 16}
    with ExitStack() as stack:
        client = stack.enter_context(cluster.client())
        run = client.start_run({"learners": learners})
        pool = stack.enter_context(ThreadPoolExecutor(NUM_LEARNERS))
        before = min(pool.map(work, range(NUM_LEARNERS)))
        growth = resident_bytes(pid, peak=True) - before
        states = [learner.state for learner in client.run(run.run_id).learners]
    record(f"{growth / 1e6:.0f} MB more at the peak")
    assert states.count(LearnerState.DONE) == NUM_LEARNERS
    assert growth < MAX_GROWTH_BYTES
