"""Ordinary warm-ups of a real coordinator: without a worker, through kill -9, from the shell."""

from __future__ import annotations

import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lipt.common.errors import OverLimitError, StrategyOptionError
from lipt.trainer import Client, Subset
from lipt.trainer.cli import app
from tests.cluster import SMALL_RUN, Cluster
from tests.waiting import wait_until

# Long enough to be killed in the midst of it.
LONG = {"pretraining": "epochs:40"}


def begin(client: Client) -> None:
    """A run that has its theta*, and never a learner."""
    client.start_run({**SMALL_RUN, "seed": 5}, name="alone")
    wait_until(lambda: client.run("alone").state.value == "training")


def test_a_warm_up_needs_no_worker_and_is_told_by_itself(tmp_path: Path) -> None:
    limits = ["--limits-warm-up-epochs", "6"]
    with Cluster(tmp_path) as cluster:
        cluster.start_coordinator(*limits)
        with cluster.client() as client:
            begin(client)

            def ask(strategy: str, pretraining: str, **asked: Any) -> Subset:
                options = {"pretraining": pretraining, **asked}
                return client.subset("alone", strategy, budget=50, options=options)

            first = ask("grand", "epochs:2x3")
            other = ask("el2n", "epochs:2.0x3")
            costs, later = first.manifest["costs"], other.manifest["costs"]
            assert costs["warm_up_seconds"] == later["warm_up_seconds"] > 0
            assert first.manifest["options"] == other.manifest["options"]
            assert later["selection_seconds"] < costs["selection_seconds"] + costs["warm_up_seconds"]
            with pytest.raises(OverLimitError, match=r"7 epochs.*limits\.warm_up_epochs allows 6"):
                ask("grand", "epochs:1x7")
            with pytest.raises(StrategyOptionError, match=r"looks at no model"):
                ask("uniform", "epochs:1")
            out = tmp_path / "subset.json"
            words = ["subset", "get", "alone", "--strategy", "grand", "--budget", "50"]
            words += ["--option", "pretraining=epochs:2x3", "--out", str(out)]
            shown = CliRunner().invoke(app, [*words, "--coordinator", cluster.address])
            assert shown.exit_code == 0, shown.output
            assert Subset.from_json(out.read_text()).digest == first.digest


def test_a_coordinator_killed_in_a_warm_up_chooses_the_same_afterwards(tmp_path: Path) -> None:
    def ask(cluster: Cluster) -> Subset:
        with cluster.client() as client:
            return client.subset("alone", "grand", budget=50, options=LONG)

    digests = []
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        with Cluster(tmp_path / name) as cluster, ThreadPoolExecutor(1) as pool:
            coordinator = cluster.start_coordinator()
            with cluster.client() as client:
                begin(client)
            if name == "killed":
                asking = pool.submit(ask, cluster)
                warm_ups = cluster.state / "signals" / "warm-ups"
                wait_until(lambda: len(list(warm_ups.glob("warm-up-*.safetensors"))) > 0)
                coordinator.stop(signal.SIGKILL)
                cluster.start_coordinator("--listen", cluster.address)
                digests.append(asking.result(120).digest)
            else:
                digests.append(ask(cluster).digest)
    assert digests[0] == digests[1]
