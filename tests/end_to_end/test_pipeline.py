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
    assert run.state is RunState.READY, run.message
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
        assert crowd.state is RunState.READY, crowd.message
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


def test_other_methods_and_given_weights_make_a_run_of_their_own(
    client: Client, tmp_path: Path
) -> None:
    learners = {"num_learners": 2, "num_steps": 1, "num_minibatches": 2, "batch_size": 16}
    first = client.wait(
        client.start_run(
            {
                "learners": learners,
                "initialization": {"steps": 2, "batch_size": 32},
                "augmentation": {"method": "crop_flip"},
                "pruning": {"method": "snip", "density_min": 0.5, "density_max": 0.5},
                "soup": {"method": "uniform", "batch_norm_examples": 32},
            }
        ).run_id
    )
    assert first.state is RunState.READY, first.message
    kept = [learner.ingredient.kept for learner in first.learners if learner.ingredient]
    assert kept == [True, True]
    path = tmp_path / "theta_p.safetensors"
    client.save_weights(path, first.run_id)
    given = client.upload_weights(path)
    second = client.wait(
        client.start_run(
            {
                "learners": learners,
                "initialization": {"weights_sha256": given.sha256},
                "pruning": {"method": "random"},
            }
        ).run_id
    )
    assert second.initial_weights == first.pretrained_weights
    everything = client.subset(second.run_id, "grand", fraction=1.0, options={"parameters": "all"})
    assert everything.indices.tolist() == list(range(1797))
    reselected = client.subset(second.run_id, "grand", budget=50, weights=path)
    assert reselected.digest == client.subset(first.run_id, "grand", budget=50).digest


def test_user_s_own_data_and_model_from_one_short_file(
    cluster: Cluster, small_run: dict[str, Any], tmp_path: Path
) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    source = readme.split("```python mine.py\n")[1].split("```")[0]
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
        assert run.state is RunState.READY, run.message
        assert {learner.worker for learner in run.learners} == {"friend"}
        assert len(client.subset(run.run_id, "grand", budget=20)) == 20
    assert friend.stop() == 0


def test_real_images_give_500_of_each_class(cluster: Cluster, cifar10_jpeg: Path) -> None:
    cluster.start_coordinator("--data", f"parquet:{cifar10_jpeg}")
    for name in ("one", "two"):
        cluster.start_worker(name)
    overrides = {
        "learners": {"num_learners": 2, "num_steps": 1, "batch_size": 64},
        "soup": {"num_alphas": 2, "batch_norm_examples": 64},
    }
    with cluster.client() as client:
        run = client.wait(client.start_run(overrides).run_id)
        assert run.state is RunState.READY, run.message
        subset = client.subset(run.run_id, "grand", fraction=0.1)
    # Rows are ordered by class: 5,000 of each.
    counts = np.bincount(subset.indices // 5000, minlength=10)
    assert counts.tolist() == [500] * 10
    assert len(set(subset.indices.tolist())) == 5000


def test_exact_encodings_give_the_same_soup_and_the_others_a_smaller_one(
    client: Client, small_run: dict[str, Any]
) -> None:
    finals = {}
    for encoding in ("bitmask", "planes", "bfloat16_planes"):
        learners = {**small_run["learners"], "encoding": encoding}
        run = client.start_run({**small_run, "learners": learners}, name=encoding)
        finals[encoding] = client.wait(run.run_id)
        assert finals[encoding].state is RunState.READY
    bitmask, planes, rounded = finals.values()
    assert planes.pretrained_weights == bitmask.pretrained_weights
    assert rounded.pretrained_weights != bitmask.pretrained_weights
    sizes = [final.costs.bytes_from_workers for final in finals.values() if final.costs]
    assert sizes[1] < 0.9 * sizes[0]
    assert sizes[2] < 0.5 * sizes[0]
