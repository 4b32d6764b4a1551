"""Labels and numbers go through the whole pipeline: runs, subsets, a diagnosis, main training."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lipt.common.data import open_dataset
from lipt.common.errors import InvalidRequestError
from lipt.common.states import RunState
from lipt.trainer import Client
from lipt.trainer.views import RunView
from tests.cluster import Cluster

MODULE = "tests.measurements"
ALLOWED = ("--allow-module", MODULE)
STRATEGIES = ("el2n", "grand", "craig", "gradmatch", "herding", "moderate", "uniform_per_class")


def ready(client: Client, **config: Any) -> RunView:
    run = client.wait(client.start_run(config).run_id)
    assert run.state is RunState.READY, run.message
    return run


def score_of_main_training(cluster: Cluster, *arguments: str) -> float:
    trained = cluster.lipt("train", *arguments, *ALLOWED, "--json")
    assert trained.returncode == 0, trained.stderr
    measures = json.loads(trained.stdout)
    assert isinstance(measures["test_accuracy"], float)
    return measures["test_accuracy"]


def test_numbers_go_from_workers_to_main_training(cluster: Cluster) -> None:
    data, model = f"{MODULE}:people", f"{MODULE}:regressor"
    opened = open_dataset(data, allowed_modules=[MODULE])
    coordinator = cluster.start_coordinator("--data", data, "--model", model, *ALLOWED)
    coordinator.wait_for("a number to be told of each")
    for name in ("one", "two"):
        cluster.start_worker(name, *ALLOWED)
    learners = {"num_learners": 4, "num_steps": 20, "batch_size": 64, "learning_rate": 0.02}
    with cluster.client() as client:
        run = ready(
            client,
            learners=learners,
            validation={"fraction": 0.1, "min_per_class": 4},
            initialization={"epochs": 1, "batch_size": 32, "learning_rate": 0.02},
        )
        assert run.soup is not None
        # The best that is known of is 0.5.
        assert run.soup.soup_accuracy > 0.25
        for strategy in STRATEGIES:
            subset = client.subset(run.run_id, strategy, budget=60)
            assert 0 < len(subset) <= 60, strategy
            assert subset.fingerprint == opened.fingerprint
        chosen = client.subset(run.run_id, "auto", budget=60)
        strata = opened.labels_N[chosen.indices.tolist()].bincount().tolist()
        assert strata == [6] * 10
        with pytest.raises(InvalidRequestError, match="'margin' works with single-label data"):
            client.subset(run.run_id, "margin", budget=60)
        chosen.save(cluster.directory / "subset.npy")
        again = ready(
            client,
            learners=learners,
            validation={"fraction": 0.1, "min_per_class": 4},
            initialization={"epochs": 1, "batch_size": 32, "learning_rate": 0.02},
        )
        assert again.pretrained_weights == run.pretrained_weights
    recipe = ("--steps", "100", "--set", "batch_size=32", "--set", "learning_rate=0.02")
    score = score_of_main_training(
        cluster, "--data", data, "--test", f"{MODULE}:people_held_out", "--model", model,
        "--subset", str(cluster.directory / "subset.npy"), *recipe,
    )  # fmt: skip
    assert score > 0.2


def test_labels_of_images_go_from_workers_to_main_training(cluster: Cluster) -> None:
    data = f"{MODULE}:properties"
    opened = open_dataset(data, allowed_modules=[MODULE])
    assert opened.class_names == ("even", "large", "prime", "none")
    coordinator = cluster.start_coordinator("--data", data, "--model", "resnet8", *ALLOWED)
    coordinator.wait_for("3 labels to be told of each example")
    cluster.start_worker("one")
    with cluster.client() as client:
        run = ready(
            client,
            learners={"num_learners": 2, "num_steps": 6, "batch_size": 128},
            soup={"num_alphas": 3, "batch_norm_examples": 64},
        )
        dataset = client.info().dataset
        assert dataset is not None
        assert dataset.targets == "multi-label targets (even, large, prime)"
        assert run.soup is not None
        # Saying yes to all of them has 0.6.
        assert run.soup.soup_accuracy > 0.65
        for strategy in ("el2n", "craig", "auto"):
            subset = client.subset(run.run_id, strategy, budget=80)
            assert len(subset) == 80, strategy
        diagnosis = client.diagnose(run.run_id)
        assert not diagnosis.label_issues()
        assert "told of classes alone, and this is multi-label" in repr(diagnosis._repr_html_())
    score = score_of_main_training(
        cluster, "--data", data, "--test", data, "--model", "resnet8", "--steps", "20",
        "--set", "augmentation=none",
    )  # fmt: skip
    assert score > 0.7


def test_what_is_no_target_is_refused_at_the_start(cluster: Cluster) -> None:
    coordinator = cluster.launch_coordinator("--data", f"{MODULE}:boxes", *ALLOWED)
    refused = coordinator.refused()
    assert "single-label, multi-label or regression" in refused
    assert "choose by features" in refused
