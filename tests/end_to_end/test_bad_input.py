from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lipt.common.errors import (
    BlobTooLargeError,
    BudgetError,
    ConfigError,
    FactoryNotAllowedError,
    LiptError,
    RunNotReadyError,
    StrategyOptionError,
    UnknownBlobError,
    UnknownNameError,
    UnknownRunError,
    WeightsError,
)
from lipt.common.weights.files import pack
from lipt.trainer import Client
from tests.cluster import Cluster


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """One coordinator without workers, and a run that is ready by other means."""
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.start_coordinator(*cluster.config("[limits]\nmax_blob_bytes = 2000000\n"))
        cluster.start_worker("one").wait_for("joined")
        with cluster.client() as client:
            learners = {"num_learners": 1, "num_steps": 1, "batch_size": 16}
            soup = {"num_alphas": 1, "batch_norm_examples": 16}
            client.wait(client.start_run({"learners": learners, "soup": soup}, name="done").run_id)
            yield client


@pytest.mark.parametrize(
    ("question", "error", "words"),
    [
        ({"fraction": 0.0}, BudgetError, r"fraction 0\.0 is outside \(0, 1\]"),
        ({"fraction": 1.5}, BudgetError, r"fraction 1\.5 is outside \(0, 1\]"),
        ({"fraction": float("nan")}, BudgetError, "fraction nan is outside"),
        ({"fraction": 1e-9}, BudgetError, "1797 examples"),
        ({"budget": 0}, BudgetError, r"budget 0 is outside 1\.\.1797"),
        ({"budget": 1798}, BudgetError, r"budget 1798 is outside 1\.\.1797"),
        ({"strategy": "best", "budget": 5}, UnknownNameError, "uniform, uniform_per_class, el2n"),
        ({"budget": 5, "options": {"size": "1"}}, StrategyOptionError, "'size'.*parameters"),
        ({"budget": 5, "options": {"parameters": "x"}}, StrategyOptionError, "last_layer, all"),
        ({"strategy": "uniform", "budget": 5, "balanced": True}, StrategyOptionError, "never"),
        ({"run": "nobody", "budget": 5}, UnknownRunError, "'nobody'.*done"),
    ],
)
def test_subset_that_cannot_be_is_refused_with_the_values_and_the_remedy(
    client: Client, question: dict[str, Any], error: type[LiptError], words: str
) -> None:
    with pytest.raises(error, match=words):
        client.subset(**{"run": "done", "strategy": "grand", **question})


@pytest.mark.parametrize(
    ("overrides", "error", "words"),
    [
        ({"model": "resnet9"}, UnknownNameError, "resnet9.*resnet8, resnet18, wrn28_10"),
        ({"model": "os:system"}, FactoryNotAllowedError, "--allow-module"),
        ({"learners": {"num_learners": 100}}, ConfigError, "100 learners x 1 .*1600.*1597"),
        ({"pruning": {"density_min": 0.0}}, ConfigError, r"density_min = 0\.0"),
        ({"initialization": {"weights_sha256": "a" * 64}}, UnknownBlobError, "Upload it first"),
    ],
)
def test_run_that_cannot_be_is_refused_at_once(
    client: Client, overrides: dict[str, Any], error: type[LiptError], words: str
) -> None:
    with pytest.raises(error, match=words):
        client.start_run({"learners": {"num_learners": 1, "batch_size": 16}, **overrides})
    assert [run.name for run in client.runs()] == ["done"]


def test_weights_of_another_model_are_refused(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    path.write_bytes(pack({"linear.weight": torch.zeros(3, 2)}))
    name = client.upload_weights(path)
    overrides = {"initialization": {"weights_sha256": name.sha256}}
    learners = {"learners": {"num_learners": 1, "batch_size": 16}}
    with pytest.raises(WeightsError, match="missing, the model has"):
        client.start_run({**overrides, **learners})


def test_blob_over_the_limit_is_refused_from_its_size(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "large.safetensors"
    path.write_bytes(pack({"w": torch.zeros(1_000_000)}))
    with pytest.raises(BlobTooLargeError, match="2000000"):
        client.upload_weights(path)


def test_weights_of_a_run_that_was_cancelled_are_refused(client: Client) -> None:
    learners = {"num_learners": 1, "num_steps": 100_000, "batch_size": 16}
    run = client.start_run({"learners": learners}, name="long")
    with pytest.raises(RunNotReadyError, match=r"lipt run watch long"):
        client.subset("long", "grand", fraction=0.1)
    client.cancel(run.run_id)
    with pytest.raises(RunNotReadyError, match="cancelled"):
        client.weights("long")


def test_corrupt_image_is_named_before_any_run(cluster: Cluster, tmp_path: Path) -> None:
    from PIL import Image

    for label in ("cat", "dog"):
        (tmp_path / "images" / label).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (16, 16), (number, 0, 0)).save(
                tmp_path / "images" / label / f"{number}.png"
            )
    broken = tmp_path / "images" / "dog" / "1.png"
    broken.write_bytes(broken.read_bytes()[:40])
    text = cluster.launch_coordinator("--data", f"imagefolder:{tmp_path / 'images'}").refused()
    assert str(broken) in text
    assert "4" in text  # its id: three cats come first
