"""Image-caption pairs by real processes: from a folder and two towers to what is kept."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from lipt.common.data import open_pairs
from lipt.common.states import RunState
from tests.cluster import Cluster
from tests.coloured_shapes import TOWERS, caption_of, swapped, write_folder
from tests.session import Session

SWAPS = ((7, 23), (11, 40), (2, 58))
WRONG = sorted(row for swap in SWAPS for row in swap)
RUN = {
    "learners": {"num_learners": 2, "num_steps": 2, "batch_size": 5, "num_minibatches": 2},
    "soup": {"num_alphas": 2},
}


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    # Processes that are started keep their rows there as well.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = write_folder(tmp_path / "pairs", swapped(60, SWAPS))
    return f"pairs:{folder}?{TOWERS}&size=24&clusters=5"


def test_a_coordinator_and_one_call_keep_the_same_pairs(cluster: Cluster, source: str) -> None:
    cluster.start_coordinator("--data", source, "--model", "linear")
    cluster.start_worker("one")
    with cluster.client() as client:
        run = client.wait(client.start_run(RUN).run_id)
        assert run.state is RunState.READY, run.message
        filtered = client.subset(strategy="clip_score", budget=54)
        covering = client.subset(strategy="clipcov", budget=20)
    assert sorted(set(range(60)) - set(filtered.indices.tolist())) == WRONG
    pairs = open_pairs(source)
    assert all(pairs[row][1] == caption_of(row) for row in filtered.indices.tolist())
    # A third of them, with equal shares of the five colours: none is wrong.
    assert set(covering.indices.tolist()).isdisjoint(WRONG)
    assert Counter(row % 5 for row in covering.indices.tolist()) == dict.fromkeys(range(5), 4)

    with Session(source) as session:
        session.pretrain(RUN)
        for subset in (filtered, covering):
            again = session.client.subset(strategy=subset.strategy, budget=len(subset))
            assert again.indices.tolist() == subset.indices.tolist()
            assert again.fingerprint == subset.fingerprint


def test_the_commands_own_data_allows_its_towers(cluster: Cluster, source: str) -> None:
    cluster.start_coordinator("--data", source, "--model", "linear")
    cluster.start_worker("one")
    with cluster.client() as client:
        client.wait(client.start_run(RUN).run_id)
    folder = str(cluster.directory / "chosen")
    arguments = ("--strategy", "clip_score", "--budget", "54", "--out", f"{folder}.npy")
    got = cluster.lipt("subset", "get", *arguments)
    assert got.returncode == 0, got.stderr
    trained = cluster.lipt(
        *("train", "--data", source, "--test", source, "--model", "linear", "--steps", "5"),
        *("--strategy", "clip_score", "--fraction", "0.9", "--set", "batch_size=16", "--json"),
        *("--log", f"{folder}.jsonl"),
    )
    assert trained.returncode == 0, trained.stderr
