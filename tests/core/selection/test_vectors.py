import pytest
import torch

from lipt.core.passes import row_blocks
from lipt.core.selection import vectors as module
from lipt.core.selection.vectors import CosineKernel, ProductRows, Space
from tests.core.selection.builders import in_space, random_signals, written_out

SPACES: list[Space] = ["features", "gradients"]


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("block_bytes", [1, 500, 10**6])
def test_products_equal_those_of_explicit_vectors(
    name: Space, has_bias: bool, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals = random_signals(23, has_bias=has_bias)
    vectors = written_out(signals, name)
    monkeypatch.setattr(
        module, "row_blocks", lambda count, size, *_: row_blocks(count, size, block_bytes)
    )
    monkeypatch.setattr(module, "_SUM_BYTES", block_bytes)
    rows = ProductRows(in_space(signals, name))
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
        rows.squared_distances_from_mean(), (vectors - vectors.mean(dim=0)).square().sum(dim=1)
    )


@pytest.mark.parametrize("name", SPACES)
def test_the_cosine_kernel_equals_explicit_cosines(name: Space) -> None:
    signals = random_signals(23)
    unit = torch.nn.functional.normalize(written_out(signals, name))
    expected = (1 + unit @ unit.T) / 2
    similarity = CosineKernel(ProductRows(in_space(signals, name)))
    torch.testing.assert_close(similarity.rows(torch.arange(23)), expected)
    torch.testing.assert_close(similarity.diagonal(), expected.diagonal())
    torch.testing.assert_close(similarity.column_sums(), expected.sum(dim=0))


def test_a_zero_gradient_has_similarity_one_half() -> None:
    signals = random_signals(3)
    signals.errors_NC[1] = 0
    similarity = CosineKernel(ProductRows(in_space(signals, "gradients")))
    assert similarity.rows(torch.tensor([1])).tolist() == [[0.5, 0.5, 0.5]]
    assert similarity.diagonal().tolist() == [1.0, 0.5, 1.0]
