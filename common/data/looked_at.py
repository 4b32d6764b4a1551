"""Images looked at: what the images of a set have in common, kept, so that all are opened once.

Of a set that stays encoded, every image's header and end are read before it is used. Of a million
images that takes minutes on a disk, and an hour where every image is a request to a store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from lipt.common.data.scaling import Sizes
from lipt.common.data.sources.kept_index import kept
from lipt.common.data.sources.rows import ImageRows

# What is kept, and how images are checked; raised whenever that changes.
_FORMAT = 2


@dataclass(frozen=True)
class Look:
    """What a look at all images of a set has shown.

    sizes: of those that can be used.
    grayscale: whether all of these are.
    quarantined: the ids of those that cannot, ascending.
    """

    sizes: Sizes
    grayscale: bool
    quarantined: tuple[int, ...] = ()


def looked_at(rows: ImageRows, look: Callable[[], Look], asked: tuple[object, ...]) -> Look:
    """What `look` has shown once.

    Args:
        rows: the set's. Where its files are not known, or look otherwise than then, `look` is
            called again.
        look: goes through all images; raises DataError where too many are broken, and nothing is
            kept.
        asked: how closely it looks, and what may be broken.
    """
    if rows.stamp is None:
        return look()
    depends_on = (_FORMAT, rows.source, len(rows), rows.stamp.paths, rows.stamp.digest, asked)

    def make() -> dict[str, torch.Tensor]:
        found = look()
        return {
            "sizes": torch.tensor([*found.sizes.low, *found.sizes.high]),
            "gray": torch.tensor([found.grayscale]),
            "quarantined": torch.tensor(found.quarantined, dtype=torch.int64),
        }

    tensors = kept("images", depends_on, make)
    low_height, low_width, high_height, high_width = tensors["sizes"].tolist()
    sizes = Sizes((low_height, low_width), (high_height, high_width))
    return Look(sizes, bool(tensors["gray"].item()), tuple(tensors["quarantined"].tolist()))
