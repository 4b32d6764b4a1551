"""Mixtures of a service: sources that workers hold, kills in the middle, and hostile workers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lipt
from lipt.common.config.run_config import PRESETS, merge
from lipt.common.errors import LearnerRejectedError, PermissionDeniedError
from lipt.v1 import worker_pb2
from tests.cluster import Cluster
from tests.coordinator.test_mixtures import table
from tests.lipt.test_target_selection import words

SETTINGS: dict[str, Any] = {
    "initialization": {"steps": 20, "batch_size": 16},
    "learners": {"num_minibatches": 8, "batch_size": 16, "worker_sources": ["clinic"]},
}
RUN = merge(PRESETS["mixture"], SETTINGS)
DIGEST = "0" * 64


@pytest.fixture
def data(tmp_path: Path) -> dict[str, str]:
    return {
        "pool": table(tmp_path / "pool.csv", [("north", 200, -1.0), ("south", 150, -1.0)], seed=0)
        + "&source=site",
        "clinic": table(tmp_path / "clinic.csv", [("here", 180, 1.0)], seed=1),
        "target": table(tmp_path / "target.csv", [("x", 60, 1.0)], seed=2),
    }


def start(cluster: Cluster, data: str) -> Any:
    return cluster.start_coordinator("--data", data, "--model", "linear")


def test_a_source_stays_with_its_worker_and_survives_kills(
    cluster: Cluster, data: dict[str, str], tmp_path: Path
) -> None:
    coordinator = start(cluster, data["pool"])
    cluster.start_worker("anywhere", "--max-learners", "4")
    with cluster.client() as client:
        run = client.start_run(RUN)
        waiting = next(view for view in client.watch(run.run_id) if "clinic" in view.waiting_reason)
        assert "start lipt-worker --source NAME" in waiting.waiting_reason
    coordinator.stop()
    start(cluster, data["pool"])
    with cluster.client() as client:
        cluster.start_worker("holder", "--worker-data", data["clinic"], "--source", "clinic")
        ready = client.wait(run.run_id)
        assert ready.sources == ("north", "south", "clinic")
        by = {learner.index: learner.worker for learner in ready.learners}
        assert {by[2], by[5]} == {"holder"}
        mixture = client.mixture(run.run_id, data["target"])
    assert mixture.weights["clinic"] > 0.9
    assert mixture.manifest["sources"]["clinic"] == 180
    assert mixture.rows["clinic"] == ()
    assert "closed form" not in mixture.outcomes
    written = tmp_path / "mixture.json"
    done = cluster.lipt(
        *("mixture", "get", "--run", run.run_id, "--target-data", data["target"]),
        *("--out", str(written), "--json"),
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["weights"] == dict(mixture.weights)
    assert lipt.Mixture.load(written).weights == mixture.weights


def test_kills_in_the_middle_change_no_bit_of_a_mixture_or_subset(
    cluster: Cluster, tmp_path: Path
) -> None:
    rules: dict[str, Callable[[str], str]] = {"upper": str.upper, "twice": lambda word: word[0] * 2}
    pool, target = tmp_path / "pool.jsonl", tmp_path / "target.jsonl"
    rows = [
        {"word": word, "answer": rules[name](word), "from": name}
        for name in rules
        for word in words(120, len(name))
    ]
    # Blank lines are no rows.
    pool.write_text("\n\n".join(map(json.dumps, rows)))
    target.write_text("\n".join(json.dumps({"word": w, "answer": w.upper()}) for w in words(30, 9)))
    options = "prompt=word&completion=answer&max_length=12"
    data, asked = f"jsonl:{pool}?{options}&source=from", f"jsonl:{target}?{options}"
    quick = {
        "initialization": {"steps": 20, "batch_size": 16},
        "learners": {"num_learners": 4, "num_minibatches": 4, "batch_size": 16},
    }
    settings = merge(PRESETS["mixture-text"], quick)
    here: dict[str, Any] = {"run": settings, "device": "cpu", "progress": False}
    mixture = lipt.mix(data, asked, "text:causal", **here)
    subset = lipt.select(data, "text:causal", target_data=asked, budget=24, **here)
    served = ("--data", data, "--model", "text:causal")
    coordinator = cluster.start_coordinator(*served)
    first = cluster.start_worker("first", "--max-learners", "1")
    with cluster.client() as client:
        run = client.start_run(settings)
        first.wait()
    coordinator.stop(9)
    coordinator = cluster.start_coordinator(*served)
    cluster.start_worker("second")
    with cluster.client() as client:
        client.wait(run.run_id)
        found = client.mixture(run.run_id, asked)
        chosen = client.subset(run.run_id, target_data=asked, budget=24)
    # The answer is stored.
    coordinator.stop(9)
    cluster.start_coordinator(*served)
    with cluster.client() as client:
        assert client.mixture(run.run_id, asked) == found
    assert found.weights == mixture.weights
    assert found.outcomes == mixture.outcomes
    assert chosen.digest == subset.digest
    written = chosen.to_jsonl(data, tmp_path / "chosen.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in written] == [rows[row] for row in subset.indices]


def test_a_worker_trains_no_source_that_its_token_does_not_name(
    cluster: Cluster, data: dict[str, str]
) -> None:
    start(cluster, data["pool"])
    with cluster.client() as client:
        named = client.create_token("worker", source="clinic").secret
        other = client.create_token("worker", source="web").secret
        plain = client.create_token("worker").secret
        run = client.start_run(merge(RUN, {"learners": {"num_steps": 1}}))
    for token in (plain, other):
        with pytest.raises(PermissionDeniedError, match="holds the source clinic"):
            cluster.play_worker("liar", token=token, source="clinic")
    stranger = cluster.play_worker("stranger", token=plain)
    taken = [stranger.take()]
    assert taken[0].learner_index != 2
    holder = cluster.play_worker("holder", token=named, source="clinic")
    # The holder gets the learner of its source as soon as the others are with workers.
    taken += [cluster.play_worker(name, token=plain).take() for name in ("a", "b", "c")]
    assert sorted(one.learner_index for one in taken) == [0, 1, 3, 4]
    own = holder.take()
    assert own.learner_index == 2
    weights = holder.upload(holder.learner(own))
    unreported = worker_pb2.LearnerReport(loss=1.0, train_seconds=1.0)
    with pytest.raises(LearnerRejectedError, match="Report those of the worker's data"):
        holder.client.commit(own, [weights], unreported)
    own = holder.take()
    report = worker_pb2.LearnerReport(
        loss=1.0, train_seconds=1.0, num_examples=10, fingerprint=DIGEST
    )
    holder.client.commit(own, [holder.upload(holder.learner(own))], report)
    again = holder.take()
    assert {own.learner_index, again.learner_index} == {2, 5}
    report.fingerprint = DIGEST.replace("0", "1")
    with pytest.raises(LearnerRejectedError, match="Give its workers the same data"):
        holder.client.commit(again, [holder.upload(holder.learner(again))], report)
    with cluster.client() as client:
        assert client.run(run.run_id).learners[again.learner_index].attempts == 1
