"""Comparing what a device came to with what the CPU came to."""

from collections.abc import Mapping

import torch
from torch import Tensor


def close(
    found: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: float = 1e-4
) -> None:
    """All tensors, by name, wherever they are; sums may be taken in another order."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        there = found[name].detach().cpu()
        torch.testing.assert_close(there, tensor, rtol=tolerance, atol=tolerance, msg=name)
