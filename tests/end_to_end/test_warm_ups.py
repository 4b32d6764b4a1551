"""Subsets of a real coordinator that need no learner: without a worker, and through kill -9."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lipt.common.errors import RunNotReadyError
from lipt.common.states import RunState
from lipt.trainer import Client, Subset
from lipt.trainer.views import ProgressView
from tests.cluster import SMALL_RUN, Cluster, LoggedProcess

# Full batches of the digits' training split.
STEPS_PER_EPOCH = 6


def begin(client: Client) -> None:
    """A run "alone" that has its theta*, and never a learner."""
    client.start_run({**SMALL_RUN, "seed": 5}, name="alone")
    next(view for view in client.watch("alone") if view.state is RunState.TRAINING)


class Killer:
    """Kills a coordinator once, in the midst of a warm-up, and starts another in its place."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._coordinator: LoggedProcess | None = cluster.start_coordinator()
        # The steps that were told by the second one.
        self.steps: list[int] = []

    def __call__(self, view: ProgressView) -> None:
        if view.activity != "warming up model":
            return
        if self._coordinator is None:
            self.steps.append(view.done)
        elif view.done > STEPS_PER_EPOCH:
            self._coordinator.stop(signal.SIGKILL)
            self._coordinator = None
            self._cluster.start_coordinator("--listen", self._cluster.address)


def test_a_coordinator_killed_in_a_warm_up_chooses_the_same_afterwards(tmp_path: Path) -> None:
    def choose(cluster: Cluster, on_progress: Callable[[ProgressView], None] | None) -> Subset:
        with cluster.client() as client:
            begin(client)
            options = {"pretraining": "epochs:8"}
            return client.subset(
                "alone", "grand", budget=50, options=options, on_progress=on_progress
            )

    (tmp_path / "killed").mkdir()
    with Cluster(tmp_path / "killed") as cluster:
        killer = Killer(cluster)
        found = choose(cluster, killer)
    with Cluster(tmp_path) as cluster:
        cluster.start_coordinator()
        assert choose(cluster, None).digest == found.digest
    # It went on at an epoch's end, and did not begin again.
    assert min(killer.steps) > STEPS_PER_EPOCH


def test_what_needs_no_learner_is_answered_without_a_worker(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        cluster.start_coordinator()
        with cluster.client() as client:
            begin(client)
            served = client.info().dataset
            assert served is not None
            features_ND = np.zeros((served.num_examples, 2), np.float32)
            asked: list[dict[str, Any]] = [
                {"strategy": "auto", "proxy": "ridge:patches"},
                {"strategy": "uniform_per_class"},
                {"strategy": "kcenter", "labels": "none"},
                {"strategy": "kcenter", "proxy": "ridge:user", "features": features_ND},
            ]
            # Of "latest", the default.
            found = [client.subset(budget=50, **one) for one in asked]
            assert {subset.manifest["run_name"] for subset in found} == {"alone"}
            with pytest.raises(RunNotReadyError, match="0 of 4 learners are in"):
                client.subset(budget=50)
