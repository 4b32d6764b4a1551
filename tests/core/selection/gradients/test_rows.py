"""Products and similarities against vectors that are written out."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from lipt.common.signals.blocks import row_blocks
from lipt.core.selection.gradients import rows as rows_module
from lipt.core.selection.gradients.rows import Rows, ScaledCosine
from lipt.core.selection.gradients.vectors import SpaceName, in_space
from tests.core.selection.builders import random_signals, written_out

SPACES: list[SpaceName] = ["features", "gradients"]


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("block_bytes", [1, 500, 10**6])
def test_products_are_those_of_the_vectors(
    name: SpaceName, has_bias: bool, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals = random_signals(23, has_bias=has_bias)
    vectors = written_out(signals, name)
    monkeypatch.setattr(rows_module, "row_blocks", partial(row_blocks, block_bytes=block_bytes))
    monkeypatch.setattr(rows_module, "_SUM_BYTES", block_bytes)
    rows = Rows(in_space(signals, name))
    positions = torch.tensor([4, 0, 22])
    weights = torch.rand(23, dtype=torch.float64)
    torch.testing.assert_close(rows.products(positions), vectors[positions] @ vectors.T)
    torch.testing.assert_close(rows.squares_N, vectors.square().sum(dim=1))
    torch.testing.assert_close(rows.products_with_sum(weights), vectors @ (weights @ vectors))
    torch.testing.assert_close(
        rows.squared_distances(positions),
        torch.cdist(vectors[positions], vectors).square(),
        rtol=1e-6,
        atol=1e-9,
    )
    torch.testing.assert_close(
        rows.squared_distances_from_mean(),
        (vectors - vectors.mean(dim=0)).square().sum(dim=1),
    )


@pytest.mark.parametrize("name", SPACES)
def test_equal_examples_are_at_distance_zero(name: SpaceName) -> None:
    # Far from the origin, where differences of squares lose most.
    signals = random_signals(3).take(torch.tensor([0, 1, 2] * 50))
    rows = Rows(in_space(replace(signals, features_ND=signals.features_ND + 1000), name))
    distances = rows.squared_distances(torch.arange(3))
    assert (distances == 0).tolist() == [[j % 3 == i for j in range(150)] for i in range(3)]


@pytest.mark.parametrize("name", SPACES)
def test_the_mean_is_at_distance_zero_from_itself(name: SpaceName) -> None:
    same = random_signals(1).take(torch.zeros(77, dtype=torch.int64))
    rows = Rows(in_space(same, name))
    assert not rows.squared_distances_from_mean().any()


@pytest.mark.parametrize("name", SPACES)
def test_scaled_cosine_is_that_of_the_vectors(name: SpaceName) -> None:
    signals = random_signals(23)
    unit = torch.nn.functional.normalize(written_out(signals, name))
    expected = (1 + unit @ unit.T) / 2
    similarity = ScaledCosine(Rows(in_space(signals, name)))
    torch.testing.assert_close(similarity.rows(torch.arange(23)), expected)
    torch.testing.assert_close(similarity.to_themselves(), expected.diagonal())
    torch.testing.assert_close(similarity.column_sums(), expected.sum(dim=0))


def test_a_zero_gradient_is_halfway_from_everything() -> None:
    signals = random_signals(3)
    signals.errors_NC[1] = 0
    similarity = ScaledCosine(Rows(in_space(signals, "gradients")))
    assert similarity.rows(torch.tensor([1])).tolist() == [[0.5, 0.5, 0.5]]
    assert similarity.to_themselves().tolist() == [1.0, 0.5, 1.0]
