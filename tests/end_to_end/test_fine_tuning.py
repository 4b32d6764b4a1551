"""A backbone of the digits 0 to 4, fine-tuned on 5 to 9 with real processes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from lipt.common.config.tasks import LearnerTask
from lipt.common.data import open_dataset
from lipt.common.errors import (
    LearnerRejectedError,
    RunNotReadyError,
)
from lipt.common.states import RunState
from lipt.common.weights.files import read_container
from lipt.common.weights.specs import Weights
from lipt.trainer import Recipe, fit
from lipt.trainer.views import RunView
from tests.cluster import Cluster

HIGH = ("--data", "tests.other_digits:high")
LEARNERS = {"num_learners": 2, "num_steps": 10, "batch_size": 64, "learning_rate": 0.1}
SOUP = {"num_alphas": 3, "batch_norm_examples": 64}


def overrides(*frozen: str, **learners: Any) -> dict[str, Any]:
    return {
        "model": "resnet8",
        "initialization": {"new_head": True},
        "learners": {**LEARNERS, "frozen": list(frozen), **learners},
        "soup": SOUP,
    }


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a training script leaves behind: a wrapped model's state dict, by `torch.save`."""
    digits = open_dataset("tests.other_digits:low", allowed_modules=["tests"])
    recipe = Recipe(steps=60, batch_size=64, learning_rate=0.1, augmentation="none")
    weights = fit("resnet8", digits, recipe=recipe, device="cpu").weights
    path = tmp_path_factory.mktemp("backbone") / "backbone.pt"
    wrapped = {f"module.{name}": tensor for name, tensor in weights.items()}
    torch.save({"epoch": 3, "state_dict": wrapped}, path)
    return path


def weights_of(content: bytes) -> Weights:
    container = read_container(content, max_bytes=len(content), max_tensors=1000)
    return {name: container.tensor(name) for name in container.specs}


def sizes(run: RunView) -> list[int]:
    return [learner.result.size_bytes for learner in run.learners if learner.result]


def accuracies(run: RunView) -> tuple[float, float]:
    assert run.soup is not None
    return run.soup.initial_accuracy, run.soup.soup_accuracy


def test_a_head_is_trained_on_a_backbone_of_other_classes(cluster: Cluster, backbone: Path) -> None:
    cluster.start_coordinator(*HIGH)
    started = cluster.lipt(
        *("run", "start", "--name", "fine", "--initial-weights", str(backbone), "--new-head"),
        *("--freeze", "all-but-head", "--num-learners", "2", "--num-steps", "10"),
        *("--batch-size", "64", "--set", "learners.num_snapshots=2", "--set", "soup.num_alphas=3"),
        *("--set", "learners.learning_rate=0.1", "--set", "learners.redundancy=2"),
        *("--set", "soup.batch_norm_examples=64"),
    )
    assert started.returncode == 0, started.stderr
    note = "theta* begins with 54 tensors of the weights given; new: 'fc.weight', 'fc.bias'."
    assert note in started.stdout.splitlines()
    asked: Mapping[str, Any] = {"fraction": 0.1, "proxy": "ridge:initial"}
    with cluster.client() as client:
        early = None
        asked: Mapping[str, Any] = {"fraction": 0.1, "proxy": "ridge:initial"}
        # theta* is made without a worker, and judges by itself.
        for view in client.watch("fine"):
            if view.initial_weights is not None:
                early = client.subset("fine", "facility_location", **asked)
                with pytest.raises(RunNotReadyError, match=r"run fine is (sharding|training)"):
                    client.subset("fine", "facility_location", fraction=0.1)
                break
        assert early is not None
        assert early.manifest["proxy"]["accuracy"] > 0.9
        for name in ("one", "two"):
            cluster.start_worker(name)
        fine = client.wait("fine")
        assert fine.state is RunState.READY, fine.message
        theta, theta_p = (
            weights_of(client.weights("fine", kind)) for kind in ("initial", "pretrained")
        )
        # Strategies and proxies that look at the learners see them whole.
        for strategy, proxy in (("forgetting", None), ("el2n", "ridge:learners"), ("auto", None)):
            assert len(client.subset("fine", strategy, fraction=0.1, proxy=proxy)) == 90
        assert client.subset("fine", "facility_location", **asked).digest == early.digest
    trained = {"fc.weight", "fc.bias"}
    assert {name for name in theta if not torch.equal(theta[name], theta_p[name])} == trained
    given = torch.load(backbone, weights_only=True)["state_dict"]
    assert all(torch.equal(theta[name], given[f"module.{name}"]) for name in theta.keys() - trained)
    before, after = accuracies(fine)
    # Random heads are right on a fifth.
    assert before < 0.5
    assert after > 0.6
    # 325 weights of 77,429: of 310 kB each learner sends 1.
    assert fine.initial_weights is not None
    for size in sizes(fine):
        assert size < 0.01 * fine.initial_weights.size_bytes
    assert fine.costs is not None
    # Two snapshots and a result, two learners.
    assert fine.costs.bytes_from_workers < 6 * 0.01 * fine.initial_weights.size_bytes
    shown = cluster.lipt("run", "show", "fine").stdout
    assert note in shown
    assert "all-but-head frozen" in shown


def test_a_learner_that_hands_in_what_is_frozen_is_refused(
    cluster: Cluster, backbone: Path
) -> None:
    cluster.start_coordinator(*HIGH)
    with cluster.client() as client:
        run = client.start_run(overrides("all-but-head"), initial_weights=backbone)
        worker = cluster.play_worker("whole")
        assignment = worker.take()
        assert isinstance(assignment.task, LearnerTask)
        assert assignment.task.learners.frozen == ("all-but-head",)
        with pytest.raises(LearnerRejectedError, match="leaves 54 of theta"):
            worker.submit(assignment)
        (learner, *_) = client.run(run.run_id).learners
        assert "the model has no such tensor" in learner.message
