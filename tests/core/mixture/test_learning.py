import torch

from lipt.core.mixture.learning import draw


def test_a_small_source_is_drawn_again_only_once_it_is_used_up() -> None:
    sources = [torch.arange(3), torch.arange(10, 30)]
    drawn = draw(
        sources,
        torch.tensor([0.5, 0.5], dtype=torch.float64),
        14,
        generator=torch.Generator().manual_seed(0),
    )
    counts = drawn.bincount(minlength=30)
    assert sorted(counts[:3].tolist()) == [2, 2, 3]
    assert counts[10:].sum() == 7
    assert counts[10:].max() == 1
