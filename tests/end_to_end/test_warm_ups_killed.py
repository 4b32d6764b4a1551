"""Ordinary warm-ups through the service, without a worker; one is killed and goes on."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lipt.common.errors import LiptError
from lipt.common.states import RunState
from lipt.trainer import Client
from lipt.trainer.subsets.subset import Subset
from tests.cluster import Cluster

HOW = "epochs:2x3"


def begun(client: Client, overrides: Mapping[str, Any]) -> str:
    """A run with its theta*, which no worker trains."""
    run = client.start_run(overrides)
    while client.run(run.run_id).state is not RunState.TRAINING:
        time.sleep(0.05)
    return run.run_id


def warmed(client: Client, run: str) -> Subset:
    """A subset of fifty by GraNd over three models."""
    return client.subset(run, "grand", budget=50, options={"pretraining": HOW})


def test_a_warm_up_that_was_killed_ends_as_one_that_was_not(
    cluster: Cluster, small_run: dict[str, Any], tmp_path: Path
) -> None:
    coordinator = cluster.start_coordinator()
    with cluster.client() as client:
        run = begun(client, small_run)

        def ask() -> None:
            with suppress(LiptError):
                warmed(client, run)

        asking = threading.Thread(target=ask)
        asking.start()
        kept = cluster.state / "signals" / "warm-ups"
        while not list(kept.glob("warm-up-*.safetensors")):
            time.sleep(0.01)
        coordinator.stop(signal.SIGKILL)
        cluster.start_coordinator("--listen", cluster.address)
        asking.join()
        killed = warmed(client, run)
    assert killed.manifest["options"] == {"pretraining": HOW}
    assert killed.manifest["costs"]["warm_up_seconds"] > 0
    other = tmp_path / "other"
    other.mkdir()
    with Cluster(other) as whole:
        whole.start_coordinator()
        with whole.client() as client:
            assert warmed(client, begun(client, small_run)).digest == killed.digest
