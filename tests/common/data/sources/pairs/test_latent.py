"""Latent classes against the definitions, one row at a time."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from lipt.common.data.sources.pairs import rows as pair_rows
from lipt.common.data.sources.pairs.rows import clusters, nearest


def test_nearest_is_the_largest_product_and_the_first_of_equals() -> None:
    centres = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    rows = torch.tensor([[0.6, 0.8], [0.8, 0.6], [0.0, 0.0]])
    assert nearest(rows, centres).tolist() == [1, 0, 0]


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    rows, centres = (torch.randn(size, 4, generator=generator) for size in (57, 5))
    expected = [int((centres @ row).argmax()) for row in rows]
    assert nearest(rows, centres).tolist() == expected
    monkeypatch.setattr(pair_rows, "_BLOCK_VALUES", 40)
    assert nearest(rows, centres).tolist() == expected


def test_clusters_that_lie_apart_are_found() -> None:
    generator = torch.Generator().manual_seed(2)
    true = torch.arange(120) % 4
    rows = functional.normalize(
        5 * torch.eye(4)[true] + 0.3 * torch.randn(120, 4, generator=generator), dim=1
    )
    found = nearest(rows, clusters(rows, 4))
    pairs = set(zip(true.tolist(), found.tolist(), strict=True))
    assert len(pairs) == 4
    assert torch.equal(found, nearest(rows, clusters(rows, 4)))


def test_copies_of_one_row_have_centres_as_well() -> None:
    rows = torch.tensor([[1.0, 0.0]]).repeat(6, 1)
    assert clusters(rows, 3).tolist() == [[1.0, 0.0]] * 3
