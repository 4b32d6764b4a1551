from __future__ import annotations

import torch

from lipt.core.selection.strategies.uniform import uniform
from lipt.core.signals.signals import labels_only

LABELS = labels_only(torch.zeros(10, dtype=torch.int64))


def test_every_example_is_equally_likely() -> None:
    # 2,000 draws of 3 from 10: each is in 600, with deviation sqrt(2000 * 0.3 * 0.7) = 20.5.
    drawn = torch.cat([uniform(LABELS, 3, seed=seed).indices_K for seed in range(2000)])
    assert ((drawn.bincount(minlength=10) - 600).abs() < 92).all()
