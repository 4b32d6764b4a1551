"""Images looked at: what the images of a set have in common, kept, so that all are opened once.

Of a set that stays encoded, every image's header and end are read before it is used. Of a million
images that takes minutes on a disk, and an hour where every image is a request to a store.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from lipt.common.data.scaling import Sizes
from lipt.common.data.sources.kept_index import kept
from lipt.common.data.sources.rows import ImageRows

# What is kept, and how images are checked; raised whenever that changes.
_FORMAT = 1


def looked_at(rows: ImageRows, look: Callable[[], tuple[Sizes, bool]]) -> tuple[Sizes, bool]:
    """The sizes of a set's images and whether all are grayscale, as `look` found them once.

    Args:
        rows: the set's. Where its files are not known, or look otherwise than then, `look` is
            called again.
        look: goes through all images; raises DataError where some are broken, and nothing is kept.
    """
    if rows.stamp is None:
        return look()
    depends_on = (_FORMAT, rows.source, len(rows), rows.stamp.paths, rows.stamp.digest)

    def make() -> dict[str, torch.Tensor]:
        sizes, grayscale = look()
        return {"sizes": torch.tensor([*sizes.low, *sizes.high]), "gray": torch.tensor([grayscale])}

    tensors = kept("images", depends_on, make)
    low_height, low_width, high_height, high_width = tensors["sizes"].tolist()
    sizes = Sizes((low_height, low_width), (high_height, high_width))
    return sizes, bool(tensors["gray"].item())
