from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from lipt.common.signals.blocks import row_blocks
from lipt.core.selection.solvers import spherical_kmeans as kmeans
from lipt.core.selection.solvers.spherical_kmeans import spherical_kmeans


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def bundles(num_each: int) -> Tensor:
    """Three bundles of directions, of any length."""
    centres = torch.eye(3).repeat_interleave(num_each, dim=0)
    rows = centres + 0.2 * torch.randn(centres.shape, generator=generator(5))
    return rows * torch.linspace(0.1, 10, len(rows))[:, None]


@pytest.mark.parametrize("seed", range(5))
def test_finds_directions_that_are_apart(seed: int) -> None:
    found = spherical_kmeans(bundles(20), 3, generator=generator(seed)).reshape(3, 20)
    assert (found == found[:, :1]).all()
    assert len(found[:, 0].unique()) == 3


def test_every_row_is_nearest_to_its_own_mean_direction() -> None:
    rows = torch.randn(120, 4, generator=generator(1))
    found = spherical_kmeans(rows, 5, generator=generator())
    unit = functional.normalize(rows.double(), dim=1)
    centres = torch.stack([unit[found == cluster].sum(dim=0) for cluster in range(5)])
    cosines = unit @ functional.normalize(centres, dim=1).T
    own = cosines.gather(1, found[:, None])[:, 0]
    assert (own >= cosines.amax(dim=1) - 1e-5).all()


def test_one_seed_gives_one_clustering_on_any_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(90, 6, generator=generator(2))
    whole = spherical_kmeans(rows, 4, generator=generator(7))
    for num_rows in (1, 13, 89):
        blocks = partial(row_blocks, block_bytes=num_rows * 6 * 8)
        monkeypatch.setattr(kmeans, "row_blocks", blocks)
        parts = spherical_kmeans(rows, 4, generator=generator(7))
        assert torch.equal(parts, whole)
    assert not torch.equal(spherical_kmeans(rows, 4, generator=generator(8)), whole)


@pytest.mark.parametrize("rows", [torch.ones(6, 3), torch.zeros(6, 3), torch.ones(1, 2)])
def test_equal_rows_are_one_cluster(rows: Tensor) -> None:
    assert spherical_kmeans(rows, 4, generator=generator()).tolist() == [0] * len(rows)


def test_no_more_clusters_than_rows() -> None:
    found = spherical_kmeans(torch.eye(3), 10, generator=generator())
    assert sorted(found.tolist()) == [0, 1, 2]
