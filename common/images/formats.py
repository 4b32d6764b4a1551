"""Image formats: an image's own, and the one that a model sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from lipt.common.errors import ConfigError


@dataclass(frozen=True)
class Header:
    """One image's own format."""

    height: int
    width: int
    grayscale: bool


@dataclass(frozen=True)
class ImageFormat:
    """What a model sees: C x H x W, scaled to [0, 1], then normalized per channel.

    Raises:
        ConfigError: not one mean and one positive deviation for each channel.
    """

    channels: Annotated[int, Field(ge=1)]
    height: Annotated[int, Field(ge=1)]
    width: Annotated[int, Field(ge=1)]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        """Refuse a normalization that no image of these channels can take."""
        positive = all(deviation > 0 for deviation in self.std)
        if not len(self.mean) == len(self.std) == self.channels or not positive:
            raise ConfigError(
                f"normalization mean {list(self.mean)}, std {list(self.std)} does not fit "
                f"{self.channels} channels."
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        return self.channels, self.height, self.width
