"""Strategies that take features, pairs, weights or no labels; what they answer, over the wire."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from lipt.common.data import open_dataset
from lipt.common.errors import (
    InvalidRequestError,
    ProxyError,
    SignalsError,
    StrategyOptionError,
    WeightsError,
)
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


IMAGES = """
import torch
from sklearn.datasets import load_digits

images_NCHW = torch.as_tensor(load_digits().images[:400] * 15, dtype=torch.uint8)[:, None]


def odd_and_even():
    return [(image, row % 2) for row, image in enumerate(images_NCHW)]


def halves():
    return [(image, row // 200) for row, image in enumerate(images_NCHW)]
"""


def choose(directory: Path, source: str) -> dict[str, list[int]]:
    """What 20 images to label, by strategy, at a coordinator of its own with the smallest run."""
    (directory / "images.py").write_text(IMAGES)
    with Cluster(directory) as cluster:
        path = {"PYTHONPATH": str(directory)}
        cluster.start_coordinator("--data", f"images:{source}", environment=path)
        cluster.start_worker("one")
        started = cluster.lipt(
            *("run", "start", "--num-learners", "1", "--set", "learners.num_steps=1", "--watch")
        )
        assert started.returncode == 0, started.stderr
        chosen = {}
        for strategy in ("stratified", "facility_location", "uniform"):
            out = directory / f"{strategy}.npy"
            got = cluster.lipt(
                *("subset", "get", "--labels", "none", "--strategy", strategy),
                *("--budget", "20", "--out", str(out)),
            )
            assert got.returncode == 0, got.stderr
            chosen[strategy] = np.load(out).tolist()
        return chosen


def test_placeholders_for_labels_do_not_matter(tmp_path_factory: pytest.TempPathFactory) -> None:
    chosen = choose(tmp_path_factory.mktemp("first"), "odd_and_even")
    assert [len(set(rows)) for rows in chosen.values()] == [20] * 3
    assert choose(tmp_path_factory.mktemp("second"), "halves") == chosen


def test_it_is_a_subset_of_its_own(client: Client) -> None:
    given = client.subset("first", "kcenter", budget=30, balanced=False, proxy="ridge:patches")
    none = client.subset("first", "kcenter", budget=30, labels="none")
    again = client.subset("first", "kcenter", budget=30, labels="none", proxy="ridge:patches")
    assert none == again
    # From the store: also the seconds that it took are the same.
    assert none.manifest == again.manifest
    assert (given.manifest["labels"], none.manifest["labels"]) == ("given", "none")
    assert given.manifest["proxy"]["accuracy"] > 0.9
    assert set(none.manifest["proxy"]) == {"proxy", "features", "num_features", "seconds"}


def test_what_labels_went_into_is_refused_with_the_remedy(client: Client) -> None:
    with pytest.raises(InvalidRequestError, match=r"Choose one of: uniform, facility_location,"):
        client.subset("first", budget=5, labels="none")
    with pytest.raises(ProxyError, match="labels have gone into learners"):
        client.subset("first", "kcenter", budget=5, labels="none", proxy="ridge:learners")
    with pytest.raises(StrategyOptionError, match="Leave `balanced` unset"):
        client.subset("first", "kcenter", budget=5, labels="none", balanced=True)
