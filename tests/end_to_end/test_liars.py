"""Learners that are not what their assignment asked for: refused alone, or found by redundancy."""

from __future__ import annotations

import signal
from typing import Any

from lipt.common.process.devices import processor_name, versions
from lipt.common.states import RunState
from tests.cluster import Cluster


def test_a_liar_is_named_and_the_soup_is_the_one_without_it(
    cluster: Cluster, small_run: dict[str, Any]
) -> None:
    coordinator = cluster.start_coordinator()
    learners = {**small_run["learners"], "num_learners": 2, "redundancy": 2}
    with cluster.client() as client:
        run = client.start_run({**small_run, "learners": learners})
        liar = cluster.play_worker("liar")
        # On such a device as the honest ones have, or so it says.
        like_theirs = versions() | {"cpu": processor_name()}
        liar.client.register(
            liar.secret, name="liar", device="cpu", versions=like_theirs, allowed_modules=()
        )
        # Nothing is wrong with it by itself: theta*, pruned as it should be.
        liar.submit(liar.take())
        held = client.run(run.run_id)
        assert [learner.result for learner in held.learners] == [None, None]
        assert held.waiting.startswith(
            "worker liar is not enough: learners.redundancy = 2 wants another"
        )
    # What is held back is as durable as what is in.
    coordinator.stop(signal.SIGKILL)
    coordinator = cluster.start_coordinator()
    workers = [cluster.start_worker(name) for name in ("honest", "other")]
    with cluster.client() as client:
        final = client.wait(run.run_id)
        assert final.state is RunState.READY, final.message
        alone = {**learners, "redundancy": 1}
        once = client.wait(client.start_run({**small_run, "learners": alone}).run_id)
    for worker in workers:
        assert worker.stop() == 0
    assert [learner.attempts for learner in final.learners] == [3, 2]
    assert final.pretrained_weights == once.pretrained_weights
    shown = cluster.lipt("run", "show", run.run_id).stdout
    assert "liar handed in" in shown
    assert "agree on it, and worker liar handed in" in shown
    log = coordinator.text()
    assert "event=learner_disputed run=" in log
    assert "event=learner_disputed detail=settled" in log
