"""Strategies that take features, pairs or weights, and re-selection, over the wire."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from lipt.common.data import open_dataset
from lipt.common.errors import (
    SignalsError,
    WeightsError,
)
from lipt.common.models import build_model
from lipt.common.weights.files import pack
from lipt.common.weights.specs import Weights
from lipt.trainer import Client, ReselectingSampler
from tests.cluster import Cluster

NUM_EXAMPLES = 1797


@pytest.fixture(scope="module")
def pixels_ND() -> torch.Tensor:
    """Features that no model made."""
    dataset = open_dataset("digits")
    return dataset.images(torch.arange(NUM_EXAMPLES)).flatten(1).float() / 255


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


@pytest.mark.smoke
def test_training_with_workers_gets_new_subsets_as_it_goes(client: Client) -> None:
    digits = open_dataset("digits")
    model = build_model("resnet8", num_classes=10, inputs=digits.inputs, seed=0)
    sampler = ReselectingSampler(
        client, model, "grand", run="first", fraction=0.1, every=1, prefetch=True
    )
    reselection = sampler.reselection
    for persistent in (True, False):  # forks once, and before every epoch
        loader = DataLoader(
            digits,  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
            batch_size=64,
            sampler=sampler,
            num_workers=2,
            persistent_workers=persistent,
            timeout=120,  # a child that a fork has locked up fails, and does not hang
            multiprocessing_context="fork",
        )
        for epoch in (0, 1, 2) if persistent else (3, 4):
            sampler.set_epoch(epoch)  # the next one is asked for while the workers fork
            seen = [int(label) for batch in loader for label in batch["label"]]
            expected = digits.labels_N[torch.from_numpy(reselection.subset.indices.copy())]
            assert sorted(seen) == sorted(expected.tolist())
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.05 * torch.randn_like(parameter))
    assert [selected.epoch for selected in reselection.history] == [1, 2, 3, 4]
    assert len({selected.digest for selected in reselection.history}) > 1
