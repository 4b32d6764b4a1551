"""Choosing what to label by real processes: from images whose labels are placeholders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from lipt.common.errors import InvalidRequestError, ProxyError, StrategyOptionError
from lipt.trainer import Client
from tests.cluster import Cluster

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


def test_features_of_ones_own_take_the_place_of_patches(client: Client) -> None:
    # One far point: whoever compares these features takes it.
    features_ND = torch.rand(1797, 4, generator=torch.Generator().manual_seed(0))
    features_ND[1234] = 1000.0
    own = {"features": features_ND}
    subset = client.subset("first", "kcenter", budget=5, labels="none", features=own)
    assert 1234 in subset.indices
    assert subset.manifest["proxy"] == {"proxy": None}


def test_what_labels_went_into_is_refused_with_the_remedy(client: Client) -> None:
    with pytest.raises(InvalidRequestError, match=r"Choose one of: uniform, facility_location,"):
        client.subset("first", budget=5, labels="none")
    with pytest.raises(ProxyError, match="labels have gone into learners"):
        client.subset("first", "kcenter", budget=5, labels="none", proxy="ridge:learners")
    with pytest.raises(StrategyOptionError, match="Leave `balanced` unset"):
        client.subset("first", "kcenter", budget=5, labels="none", balanced=True)


def test_the_list_of_strategies_says_which_can(client: Client) -> None:
    able = {view.name: view.works_without_labels for view in client.strategies()}
    assert able["stratified"]
    assert not able["auto"]
