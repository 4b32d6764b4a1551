"""What strategies are given besides signals, and what they answer with, over the wire."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from lipt.common.data import open_dataset
from lipt.common.errors import FeaturesError, SignalsError, WeightsError
from lipt.common.weights.files import pack
from lipt.common.weights.specs import Weights
from lipt.trainer import Client
from tests.cluster import Cluster

NUM_EXAMPLES = 1797

# Strategies of one's own are registered where the coordinator is started: this one has
# nothing left to gain after three examples of a class.
FRUGAL = """
from dataclasses import replace
import torch
from lipt.coordinator.cli import main
from lipt.core.selection import registry
from lipt.core.selection.selection import unweighted
from lipt.core.selection.strategy import NOTHING, Strategy

def frugal(signals, budget):
    return replace(unweighted(torch.arange(3)), stopped_early="three are enough.")

strategy = Strategy(frugal, "three", "", cost="1", needs=NOTHING)
registry.STRATEGIES["frugal"] = strategy

if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def pixels_ND() -> torch.Tensor:
    """Features that no model made."""
    dataset = open_dataset("digits")
    return dataset.images(torch.arange(NUM_EXAMPLES)).flatten(1).float() / 255


def test_a_strategy_that_looks_at_the_validation_split(client: Client) -> None:
    subset = client.subset("first", "glister", fraction=0.05)
    assert len(set(subset.indices.tolist())) == len(subset) == 90
    counts = np.bincount(open_dataset("digits").labels_N.numpy()[subset.indices], minlength=10)
    assert counts.tolist() == [9] * 10


def test_own_features_are_selected_on(client: Client, pixels_ND: torch.Tensor) -> None:
    model_s = client.subset("first", "kcenter", budget=40)
    own = client.subset("first", "kcenter", budget=40, features={"features": pixels_ND})
    assert own.digest != model_s.digest
    assert own.manifest["features_sha256"]
    assert model_s.manifest["features_sha256"] is None
    half = client.subset("first", "kcenter", budget=40, features={"features": pixels_ND.half()})
    assert len(half) == 40
    latent = client.subset("first", "sas", budget=40, features={"features": pixels_ND})
    assert len(set(latent.indices.tolist())) == 40


def test_own_features_decide_and_not_the_model(client: Client) -> None:
    # One far point per class: whatever the model thinks, it is among the first two centres.
    labels_N = open_dataset("digits").labels_N
    far_K = torch.stack([torch.nonzero(labels_N == label)[7, 0] for label in range(10)])
    features_ND = torch.rand(NUM_EXAMPLES, 4, generator=torch.Generator().manual_seed(0))
    features_ND[far_K] = 1000.0
    subset = client.subset("first", "kcenter", budget=20, features={"features": features_ND})
    assert set(far_K.tolist()) <= set(subset.indices.tolist())


def test_features_that_do_not_fit_are_refused_with_the_remedy(
    client: Client, pixels_ND: torch.Tensor
) -> None:
    with pytest.raises(FeaturesError, match=r"\[3, 64\].*1797 examples need \[1797, d\]"):
        client.subset("first", "kcenter", budget=40, features={"features": pixels_ND[:3]})
    with pytest.raises(FeaturesError, match=r"holds 'pixels'\. Write"):
        client.subset("first", "kcenter", budget=40, features={"pixels": pixels_ND})
    broken = pixels_ND.clone()
    broken[17, 3] = float("nan")
    with pytest.raises(FeaturesError, match=r"with ids 17\."):
        client.subset("first", "kcenter", budget=40, features={"features": broken})


def test_pairs_are_asked_for_and_then_selected_on(client: Client, pixels_ND: torch.Tensor) -> None:
    with pytest.raises(SignalsError, match=r"lipt subset get --features FILE\.safetensors"):
        client.subset("first", "clipcov", budget=40)
    with pytest.raises(SignalsError, match=r"paired_features"):
        client.subset("first", "clipcov", budget=40, features={"features": pixels_ND})
    pairs = {"features": pixels_ND, "paired_features": pixels_ND.flip(1)}
    subset = client.subset("first", "clipcov", budget=40, features=pairs)
    assert len(set(subset.indices.tolist())) == 40


def test_the_command_line_takes_a_file_and_lists_what_is_needed(
    ready: Cluster, pixels_ND: torch.Tensor, tmp_path: Path
) -> None:
    path, out = tmp_path / "f.safetensors", tmp_path / "s.npy"
    path.write_bytes(pack({"features": pixels_ND}))
    got = ready.lipt(
        *("subset", "get", "--run", "first", "--strategy", "herding", "--budget", "30"),
        *("--features", str(path), "--out", str(out)),
    )
    assert got.returncode == 0, got.stderr
    assert len(np.load(out)) == 30
    listed = ready.lipt("strategies", "--json")
    needs = {strategy["name"]: strategy["needs"] for strategy in json.loads(listed.stdout)}
    assert needs["uniform"] == ["nothing"]
    assert needs["glister"] == ["signals", "validation split"]
    assert needs["clipcov"] == ["paired features"]
    assert needs["herding"] == ["features"]
    text = ready.lipt("strategies")
    assert text.returncode == 0
    assert "crest: " in text.stdout


def test_the_previous_subset_stays_until_the_weights_have_moved(
    client: Client, tmp_path: Path
) -> None:
    path = tmp_path / "theta_p.safetensors"
    client.save_weights(path, "first")
    theta_p = read(path)
    first = client.subset("first", "crest", budget=60)
    assert not first.kept

    near = client.subset("first", "crest", budget=60, weights=path, previous=first)
    assert near.kept
    assert near == first
    assert near.digest == first.digest

    moved = pack(scaled(theta_p, 30.0))
    far = client.subset("first", "crest", budget=60, weights=moved, previous=first)
    assert not far.kept
    assert far.manifest["weights_sha256"] != first.manifest["weights_sha256"]
    # From here on it is the second subset that is asked about.
    again = client.subset("first", "crest", budget=60, weights=moved, previous=far.digest)
    assert again.kept
    assert again.digest == far.digest

    unknown = client.subset("first", "crest", budget=60, weights=moved, previous="0" * 64)
    assert not unknown.kept
    assert unknown.digest == far.digest
    other = client.subset("first", "grand", budget=60, weights=moved, previous=first)
    assert not other.kept
    wrong = pack({"linear.weight": torch.zeros(3, 2)})
    with pytest.raises(WeightsError, match="missing, the model has"):
        client.subset("first", "crest", budget=60, weights=wrong, previous=first)


def read(path: Path) -> Weights:
    from safetensors.torch import load_file

    return load_file(path)


def scaled(weights: Weights, factor: float) -> Weights:
    """The same model with other logits: its last layer is larger."""
    (head,) = (name for name, values in weights.items() if values.ndim == 2)
    return weights | {head: weights[head] * factor}


def test_an_early_stop_is_said_and_never_padded(cluster: Cluster) -> None:
    frugal = cluster.directory / "frugal.py"
    frugal.write_text(FRUGAL)
    cluster.start_coordinator(program=[str(frugal)])
    cluster.start_worker("one")
    with cluster.client() as client:
        learners = {"num_learners": 1, "num_steps": 1, "batch_size": 16}
        soup = {"num_alphas": 1, "batch_norm_examples": 16}
        client.wait(client.start_run({"learners": learners, "soup": soup}).run_id)
        subset = client.subset("latest", "frugal", budget=50)
        again = client.subset("latest", "frugal", budget=50)
    assert len(subset) == 30
    assert subset.manifest["budget"] == 50
    assert "class 0: three are enough." in subset.stopped_early
    assert again == subset
