"""Two towers, in the form that pretrained ones have: what encodes a batch is made once."""

from collections.abc import Callable
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn

COLOURS = {"red": (230, 20, 20), "green": (20, 200, 20), "blue": (20, 20, 230), "white": (250,) * 3}
PALETTE = torch.tensor(list(COLOURS.values())) / 255


class MeanColour(nn.Module):
    """How near an image's mean colour is to each of those that captions know."""

    def forward(self, images: Tensor) -> Tensor:
        # B x 3 x 32 x 32, from 0 to 1. A pretrained tower normalizes here, and returns
        # open_clip's `model.encode_image(...)` or transformers' `model.get_image_features(...)`.
        return torch.exp(-8 * torch.cdist(images.mean(dim=(2, 3)), PALETTE))


def image() -> nn.Module:
    return MeanColour()


def text() -> Callable[[list[str]], Tensor]:
    def encode(captions: list[str]) -> Tensor:
        # A pretrained tower tokenizes here: `model.encode_text(tokenizer(captions))`.
        return torch.tensor([[float(name in caption) for name in COLOURS] for caption in captions])

    return encode


def write_pairs(folder: str) -> None:
    """40 images of one colour, of which four have another one's caption."""
    Path(folder).mkdir(exist_ok=True)
    names = list(COLOURS)
    for row in range(40):
        shown, said = names[row % 4], names[(row + (row % 10 == 3)) % 4]
        Image.new("RGB", (32, 32), COLOURS[shown]).save(f"{folder}/{row:02}.png")
        Path(f"{folder}/{row:02}.txt").write_text(f"something {said}")
