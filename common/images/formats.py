"""Image formats: an image's own, and the one that a model sees."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Header:
    """One image's own format."""

    height: int
    width: int
    grayscale: bool


@dataclass(frozen=True)
class ImageFormat:
    """What a model sees: C x H x W, scaled to [0, 1], then normalized per channel."""

    channels: int
    height: int
    width: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        return self.channels, self.height, self.width
