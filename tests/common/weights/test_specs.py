from __future__ import annotations

import torch

from lipt.common.weights.specs import copy_to_cpu


def test_a_copy_is_contiguous_and_out_of_reach_of_the_original() -> None:
    network = torch.nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
    before = network.weight.detach().clone()
    copies = copy_to_cpu(network.state_dict(keep_vars=True))
    torch.nn.init.zeros_(network.weight)
    assert torch.equal(copies["weight"], before)
    assert copies["weight"].is_contiguous()
    assert not copies["weight"].requires_grad
