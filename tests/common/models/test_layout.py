from __future__ import annotations

import torch

from lipt.common.inputs.specs import ImageSpec
from lipt.common.models import build_model, lay_out, memory_format

CPU = torch.device("cpu")


def test_own_and_torchvision_models_are_channels_last_and_users_models_are_not() -> None:
    assert memory_format("resnet8") is torch.channels_last
    assert memory_format("torchvision:resnet18") is torch.channels_last
    assert memory_format("mine:model") is torch.contiguous_format


def test_layout_changes_no_value() -> None:
    model = build_model("resnet8", num_classes=3, inputs=ImageSpec(3, 8, 8), seed=0)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    laid_out = lay_out(model, "resnet8", CPU)
    assert laid_out is model
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
        if tensor.ndim == 4:
            assert tensor.is_contiguous(memory_format=torch.channels_last)


def test_loading_weights_keeps_the_layout() -> None:
    model = lay_out(
        build_model("resnet8", num_classes=3, inputs=ImageSpec(3, 8, 8), seed=0), "resnet8", CPU
    )
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    model.load_state_dict(weights)
    convolutions = [tensor for tensor in model.parameters() if tensor.ndim == 4]
    assert all(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in convolutions)
