"""Coloured shapes: images with captions, and two towers that know colours and nothing else."""

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

IMAGE_TOWER, TEXT_TOWER = "tests.coloured_shapes:image_tower", "tests.coloured_shapes:text_tower"
NARROW = "tests.coloured_shapes:narrow_tower"
TOWERS = f"image_tower={IMAGE_TOWER}&text_tower={TEXT_TOWER}"
COLOURS = {
    "red": (220, 30, 30),
    "green": (30, 200, 30),
    "blue": (30, 30, 220),
    "yellow": (220, 220, 30),
    "cyan": (30, 220, 220),
}
SHAPES = ("square", "bar", "disc")
SIDE = 24


def caption_of(row: int) -> str:
    return f"A {SHAPES[row % 3]}, {list(COLOURS)[row % 5]}."


def pixels_of(row: int) -> np.ndarray:
    """A shape of its own size on black, H x W x 3."""
    y, x = np.mgrid[:SIDE, :SIDE] - SIDE // 2
    size = 4 + row % 7
    masks = {
        "square": (abs(x) < size) & (abs(y) < size),
        "bar": abs(y) < size // 2,
        "disc": x**2 + y**2 < size**2,
    }
    pixels = np.zeros((SIDE, SIDE, 3), np.uint8)
    pixels[masks[SHAPES[row % 3]]] = list(COLOURS.values())[row % 5]
    return pixels


def write_folder(folder: Path, captions: Sequence[str]) -> Path:
    for row, caption in enumerate(captions):
        below = folder / f"part{row // 40}"
        below.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels_of(row)).save(below / f"{row:04}.png")
        (below / f"{row:04}.txt").write_text(f"{caption}\n")
    return folder


def swapped(num_pairs: int, swaps: Sequence[tuple[int, int]]) -> list[str]:
    captions = [caption_of(row) for row in range(num_pairs)]
    for one, other in swaps:
        captions[one], captions[other] = captions[other], captions[one]
    return captions


class ColourHistogram(nn.Module):
    """How many pixels are near each colour, and a little of how large the shape is."""

    def forward(self, images_B3SS: Tensor) -> Tensor:
        assert not torch.is_grad_enabled()
        assert not self.training
        assert images_B3SS.dtype == torch.float32
        assert 0 <= float(images_B3SS.min()) <= float(images_B3SS.max()) <= 1
        palette_53 = torch.tensor(list(COLOURS.values())) / 255
        pixels_BP3 = images_B3SS.flatten(2).transpose(1, 2)
        near_BP5 = torch.cdist(pixels_BP3, palette_53.expand(len(pixels_BP3), -1, -1)) < 0.2
        counts_B5 = near_BP5.float().sum(dim=1)
        return torch.cat([counts_B5, counts_B5.sum(dim=1, keepdim=True).sqrt()], dim=1)


def image_tower() -> nn.Module:
    count_call("image")
    return ColourHistogram()


def text_tower() -> Callable[[list[str]], Tensor]:
    count_call("text")

    def encode(texts: list[str]) -> Tensor:
        assert isinstance(texts, list)
        words = [re.findall(r"\w+", text.lower()) for text in texts]
        bags = [[*map(each.count, COLOURS), 0] for each in words]
        return torch.tensor(bags, dtype=torch.float64) * 3

    return encode


def count_call(name: str) -> None:
    if (folder := os.environ.get("COLOURED_SHAPES_CALLS")) is not None:
        with (Path(folder) / name).open("a") as file:
            file.write("made\n")


def narrow_tower() -> Callable[[list[str]], Tensor]:
    return lambda texts: torch.ones(len(texts), 1)
