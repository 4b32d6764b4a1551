"""Scaling: what a set's images are scaled to, what that costs, and how to choose otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from lipt.common.images.formats import Header
from lipt.common.sizes import format_bytes

# The largest size that images keep where all have it; a step on it is what others are compared to.
MAX_OWN_SIZE = 64


@dataclass(frozen=True)
class Sizes:
    """The sizes of a set's images, from the smallest side to the largest; height before width."""

    low: tuple[int, int]
    high: tuple[int, int]

    @classmethod
    def of(cls, header: Header) -> Sizes:
        """Those of one image."""
        return cls((header.height, header.width), (header.height, header.width))

    def with_one(self, header: Header) -> Sizes:
        """These, and another image's."""
        height, width = header.height, header.width
        return Sizes(
            (min(self.low[0], height), min(self.low[1], width)),
            (max(self.high[0], height), max(self.high[1], width)),
        )

    @property
    def differ(self) -> bool:
        """Whether the images have more than one size."""
        return self.low != self.high

    def __str__(self) -> str:
        low, high = (" x ".join(map(str, size)) for size in (self.low, self.high))
        return f"sizes from {low} to {high}" if self.differ else f"{low} pixels"


def scaling_note(
    sizes: Sizes, image_shape: tuple[int, int, int], num_examples: int, *, in_memory: bool
) -> str:
    """What to say of images that are not seen at their own size; empty where they are.

    Args:
        sizes: their own.
        image_shape: channels, height and width as the model sees them.
        num_examples: N.
        in_memory: whether they stay in memory, scaled.
    """
    channels, height, width = image_shape
    if not sizes.differ and sizes.low == (height, width):
        return ""
    each = channels * height * width
    where = "in memory" if in_memory else "in all, decoded anew whenever they are needed"
    note = (
        f"its images have {sizes} and are scaled to {height} x {width}: {format_bytes(each)} "
        f"each, {format_bytes(num_examples * each)} {where}"
    )
    times = height * width / MAX_OWN_SIZE**2
    if times <= 1:
        return note
    return (
        f"{note}; a training step takes about {times:.0f} times what it would at {MAX_OWN_SIZE} x "
        f"{MAX_OWN_SIZE}. Choose another size with --image-size, such as --image-size "
        f"{MAX_OWN_SIZE}"
    )
