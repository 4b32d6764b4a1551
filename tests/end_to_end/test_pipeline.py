from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lipt.common.data import open_dataset
from lipt.common.inputs.specs import ImageSpec
from lipt.common.models import build_model
from lipt.common.states import RunState
from lipt.common.weights.files import read_specs
from lipt.common.weights.specs import specs_of
from lipt.trainer import Client
from tests.cluster import Cluster


@pytest.mark.smoke
def test_two_workers_carry_a_run_to_its_subsets(
    ready: Cluster, client: Client, small_run: dict[str, Any], tmp_path: Path
) -> None:
    ready.start_worker("two").wait_for("joined")
    run = client.wait(client.start_run(small_run, name="of-two").run_id)
    assert sorted(learner.index for learner in run.learners) == [0, 1, 2, 3]
    assert all(learner.ingredient for learner in run.learners)
    assert run.soup is not None
    assert run.soup.soup_accuracy >= run.soup.best_learner_accuracy
    for strategy in client.strategies():
        if "paired features" in strategy.needs:
            continue  # images alone are no pairs
        subset = client.subset("of-two", strategy.name, fraction=0.1)
        count = len(set(subset.indices.tolist()))
        assert count == 180 or (count < 180 and subset.stopped_early)
        assert subset.fingerprint == open_dataset("digits").fingerprint
    path = tmp_path / "theta_p.safetensors"
    assert client.save_weights(path, "of-two") == run.pretrained_weights
    model = build_model("resnet8", num_classes=10, inputs=ImageSpec(1, 8, 8), seed=0)
    assert read_specs(path) == specs_of(model.state_dict())

    got = ready.lipt(
        *("subset", "get", "--run", "of-two", "--strategy", "grand", "--budget", "100"),
        *("--out", str(tmp_path / "s.npy")),
    )
    assert got.returncode == 0, got.stderr
    labels = open_dataset("digits").labels_N.numpy()
    counts = np.bincount(labels[np.load(tmp_path / "s.npy")], minlength=10)
    assert counts.tolist() == [10] * 10
    shown = ready.lipt("run", "show", "of-two", "--json")
    assert json.loads(shown.stdout)["state"] == "ready"


def test_one_seed_gives_one_soup_and_one_subset_whatever_the_workers(
    cluster: Cluster, small_run: dict[str, Any]
) -> None:
    cluster.start_coordinator()
    cluster.start_worker("alone")
    with cluster.client() as client:
        alone = client.wait(client.start_run(small_run, name="alone").run_id)
        # Four more; the one that was alone may or may not get a learner.
        more = [cluster.start_worker(f"more-{number}") for number in range(4)]
        for worker in more:
            worker.wait_for("joined")
        crowd = client.wait(client.start_run(small_run, name="crowd").run_id)
        # More workers than learners do no harm.
        assert [learner.attempts for learner in crowd.learners] == [1, 1, 1, 1]
        assert {learner.worker for learner in alone.learners} == {"alone"}
        assert len({learner.worker for learner in crowd.learners}) > 1
        assert alone.pretrained_weights == crowd.pretrained_weights
        assert alone.initial_weights == crowd.initial_weights
        subsets = [client.subset(name, "grand", fraction=0.1) for name in ("alone", "crowd")]
        assert subsets[0].digest == subsets[1].digest
        other = client.wait(client.start_run({**small_run, "seed": 1}).run_id)
        assert other.pretrained_weights != alone.pretrained_weights


def test_user_s_own_data_and_model_from_one_short_file(
    cluster: Cluster, small_run: dict[str, Any], tmp_path: Path
) -> None:
    source = (Path(__file__).parents[2] / "examples" / "mine.py").read_text()
    assert len(source.splitlines()) <= 15
    (tmp_path / "mine.py").write_text(source)
    paths = {"PYTHONPATH": str(tmp_path)}
    cluster.start_coordinator("--model", "mine:model", "--data", "mine:data", environment=paths)
    with cluster.client() as client:
        overrides = {key: value for key, value in small_run.items() if key != "model"}
        run = client.start_run(overrides)
        next(view for view in client.watch(run.run_id) if view.state is RunState.TRAINING)
        stranger = cluster.start_worker("stranger", environment=paths)
        stranger.wait_for("no learner for this worker: it cannot train run run-1, .* `mine`")
        waits = next(view for view in client.watch(run.run_id) if view.waiting)
        assert waits.waiting.startswith("worker stranger is idle, but does not allow `mine`")
        doctor = cluster.lipt("doctor").stdout
        assert "note   worker stranger: cpu, idle" in doctor
        assert "it cannot train run run-1, for it does not allow `mine`" in doctor
        friend = cluster.start_worker("friend", "--allow-module", "mine", environment=paths)
        run = client.wait(run.run_id)
        assert {learner.worker for learner in run.learners} == {"friend"}
        assert len(client.subset(run.run_id, "grand", budget=20)) == 20
    assert friend.stop() == 0
