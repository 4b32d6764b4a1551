import torch

from lipt.core.mixture.sources import draw
from lipt.core.selection.by_source import apportion


def shares(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_counts_add_up_and_remainders_go_to_the_largest() -> None:
    assert apportion(shares(0.5, 0.3, 0.2), 7) == [4, 2, 1]
    assert apportion(shares(1.0, 1.0, 1.0), 2) == [1, 1, 0]


def test_a_small_source_is_drawn_again_only_once_it_is_used_up() -> None:
    sources = [torch.arange(3), torch.arange(10, 30)]
    drawn = draw(sources, shares(0.5, 0.5), 14, generator=torch.Generator().manual_seed(0))
    counts = drawn.bincount(minlength=30)
    assert sorted(counts[:3].tolist()) == [2, 2, 3]
    assert counts[10:].sum() == 7
    assert counts[10:].max() == 1
