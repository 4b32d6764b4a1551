from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lipt.common.errors import DataError
from lipt.common.images.formats import ImageFormat
from lipt.common.inputs.model_input import to_model_input

GRAY = ImageFormat(1, 1, 3, mean=(0.5,), std=(0.25,))


def test_scales_to_one_then_normalizes() -> None:
    # 0 -> (0 - 0.5) / 0.25 = -2, 255 -> (1 - 0.5) / 0.25 = 2, 51 -> (0.2 - 0.5) / 0.25 = -1.2
    images = torch.tensor([[[[0, 255, 51]]]], dtype=torch.uint8)
    inputs = to_model_input(images, GRAY, "cpu")
    assert isinstance(inputs, Tensor)
    assert inputs.dtype == torch.float32
    torch.testing.assert_close(inputs, torch.tensor([[[[-2.0, 2.0, -1.2]]]]))


@pytest.mark.parametrize(
    "images",
    [
        torch.zeros(2, 1, 1, 3),
        torch.zeros(1, 1, 3, dtype=torch.uint8),
        torch.zeros(2, 1, 3, 1, dtype=torch.uint8),
        torch.zeros(2, 3, 1, 3, dtype=torch.uint8),
    ],
)
def test_other_images_than_the_format_says_are_refused(images: torch.Tensor) -> None:
    with pytest.raises(DataError, match=r"not uint8 \[B, 1, 1, 3\].*Give examples of the data set"):
        to_model_input(images, GRAY, "cpu")
