"""Side by side: several kinds of features, images read once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lipt.common.data import Dataset
from lipt.common.errors import SignalsError
from lipt.common.inputs.stored import Stored, images_in
from lipt.core.proxies import side_by_side as module
from lipt.core.proxies.side_by_side import side_by_side
from lipt.core.signals.stored import StorageLimits
from tests.digits import digits_context


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return digits_context(tmp_path_factory.mktemp("state")).dataset


def ids_of(ids_B: Tensor, _: Stored) -> Tensor:
    return ids_B[:, None].float()


def brightness(_: Tensor, stored_B: Stored) -> Tensor:
    return images_in(stored_B).float().flatten(1)[:, :2]


def test_columns_are_in_the_order_of_the_extractors(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BLOCK_BYTES", 1)
    monkeypatch.setattr(module, "_MIN_BLOCK", 2)
    ids_N = torch.tensor([5, 3, 800, 4, 9])
    told: list[tuple[int, int]] = []
    found = side_by_side(
        [ids_of, brightness], dataset, ids_N, on_progress=lambda *done: told.append(done)
    )
    pixels = dataset.images(ids_N).float().flatten(1)[:, :2]
    assert torch.equal(found, torch.cat([ids_N[:, None].float(), pixels], dim=1))
    assert told == [(2, 5), (4, 5), (5, 5)]


def test_many_are_kept_in_halves(dataset: Dataset) -> None:
    limits = StorageLimits(feature_bytes=7)
    found = side_by_side(
        [ids_of], dataset, torch.arange(2), on_progress=lambda *_: None, limits=limits
    )
    assert found.dtype == torch.float16


def test_features_that_are_not_finite_are_refused_with_their_ids(dataset: Dataset) -> None:
    def broken(ids_B: Tensor, _: Stored) -> Tensor:
        return torch.where(ids_B == 7, torch.inf, 0.0)[:, None]

    with pytest.raises(SignalsError, match=r"features are not finite.*ids 7"):
        side_by_side([broken], dataset, torch.arange(9), on_progress=lambda *_: None)
