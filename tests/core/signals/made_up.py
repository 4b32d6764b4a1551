"""A made-up data set and a small network on it, for tests of what is computed from them."""

import torch
from torch import nn

from lipt.data.dataset import Dataset
from lipt.data.inputs.specs import ImageFormat
from tests.in_memory import in_memory

CPU = torch.device("cpu")
IMAGE = ImageFormat(3, 6, 6, mean=(0.5,) * 3, std=(0.25,) * 3)


def made_up_dataset(num_examples: int = 40, num_classes: int = 3) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    shape = (num_examples, 3, 6, 6)
    return in_memory(
        source="fake",
        class_names=tuple("abcdefghij"[:num_classes]),
        labels_N=torch.randint(0, num_classes, (num_examples,), generator=generator),
        fingerprint="0" * 64,
        images_NCHW=torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8),
    )


def made_up_network(*, num_classes: int = 3, bias: bool = True, seed: int = 0) -> nn.Sequential:
    """With running statistics far from any batch's, and dropout that must stay off."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        norm = nn.BatchNorm2d(4)
        norm.register_buffer("running_mean", torch.tensor([0.5, -0.5, 0.2, 0.0]))
        norm.register_buffer("running_var", torch.tensor([2.0, 0.5, 1.0, 3.0]))
        return nn.Sequential(
            nn.Conv2d(3, 4, 3),
            norm,
            nn.ReLU(inplace=True),
            nn.Flatten(),
            nn.Dropout(0.5),
            nn.Linear(64, num_classes, bias=bias),
        )
