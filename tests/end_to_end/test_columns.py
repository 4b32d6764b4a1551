"""Data that holds no images goes through the whole pipeline: dictionaries of tensors."""

from __future__ import annotations

import json
from typing import Any

import torch

from lipt.common.data import open_dataset
from lipt.common.states import RunState
from tests.cluster import Cluster

ALLOWED = ("--allow-module", "tests.sentences")
RUN: dict[str, Any] = {
    "model": "tests.sentences:reader",
    "validation": {"fraction": 0.1},
    "learners": {"num_learners": 2, "num_steps": 8, "batch_size": 128, "num_snapshots": 2},
    "soup": {"num_alphas": 4, "batch_norm_examples": 64},
}


def test_dictionaries_of_tensors_go_from_workers_to_main_training(cluster: Cluster) -> None:
    data = open_dataset("tests.sentences:train", allowed_modules=["tests.sentences"])
    assert str(data.inputs) == "tokens int64[12], figures float32[3]"
    model = ("--model", "tests.sentences:reader")
    coordinator = cluster.start_coordinator("--data", "tests.sentences:train", *model, *ALLOWED)
    coordinator.wait_for(r"no images, but tokens int64\[12\], figures float32\[3\]")
    for name in ("one", "two"):
        cluster.start_worker(name, *ALLOWED)
    with cluster.client() as client:
        run = client.wait(client.start_run(RUN).run_id)
        assert run.state is RunState.READY, run.message
        assert run.soup is not None
        # A third of the sentences are of each class.
        assert run.soup.soup_accuracy > 0.5
        assert client.info().dataset is not None
        for strategy in ("grand", "forgetting", "auto"):
            subset = client.subset(run.run_id, strategy, fraction=0.2)
            assert len(subset) == 120, strategy
            assert subset.fingerprint == data.fingerprint
        diagnosis = client.diagnose(run.run_id)
        assert diagnosis.class_names == ("animals", "cars", "plants")
        again = client.wait(client.start_run(RUN).run_id)
        assert again.pretrained_weights == run.pretrained_weights
    trained = cluster.lipt(
        "train", "--data", "tests.sentences:train", "--test", "tests.sentences:held_out", *model,
        *ALLOWED, "--run", run.run_id, "--strategy", "el2n", "--fraction", "0.5", "--epochs", "5",
        "--json",
    )  # fmt: skip
    assert trained.returncode == 0, trained.stderr
    assert json.loads(trained.stdout)["test_accuracy"] > 0.5


def test_a_value_that_is_not_finite_is_refused_at_the_start(cluster: Cluster) -> None:
    coordinator = cluster.launch_coordinator(
        "--data", "tests.sentences:with_missing_figure", *ALLOWED
    )
    assert "row 5 has a value that is not finite in column 'figures'" in coordinator.refused()


def test_a_model_of_images_is_refused_at_the_start(cluster: Cluster) -> None:
    coordinator = cluster.launch_coordinator("--data", "tests.sentences:train", *ALLOWED)
    refused = coordinator.refused()
    assert "'resnet8' takes images; the data has tokens int64[12], figures float32[3]" in refused


def test_examples_come_back_by_their_ids() -> None:
    data = open_dataset("tests.sentences:train", allowed_modules=["tests.sentences"])
    stored = data.examples(torch.tensor([3, 1]))
    assert isinstance(stored, dict)
    tokens = data[1]["tokens"]
    assert isinstance(tokens, torch.Tensor)
    assert torch.equal(stored["tokens"][1], tokens)
