"""Embedding: all pairs through two towers, batch by batch, into memory or a mapped file.

Shapes: N pairs, B of a batch, C named classes, S pixels a side, D features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lipt.common.data.parallel import Progress, map_rows, threads_for
from lipt.common.data.sources.large import room_for
from lipt.common.data.sources.pairs.finding import FoundPairs
from lipt.common.data.sources.pairs.latent import clusters, nearest
from lipt.common.data.sources.pairs.towers import Tower
from lipt.common.errors import DataError
from lipt.common.images.decode import decode_file

_CHANNELS = 3


@dataclass(frozen=True)
class Embedding:
    """How pairs become rows.

    Attributes:
        image_tower: of their images.
        text_tower: of their captions.
        size: S, which images are scaled and cropped to.
        batch: B.
        classes: texts that stand for the latent classes; none makes clusters.
        num_clusters: how many.
    """

    image_tower: Tower
    text_tower: Tower
    size: int
    batch: int
    classes: Sequence[str]
    num_clusters: int

    def of(self, pairs: FoundPairs, progress: Progress | None = None) -> Mapping[str, Tensor]:
        """Images and captions, N x D of length 1, and labels, N: the latent classes.

        Raises:
            DataError: an image, a caption or a tower cannot be used.
        """
        rows = {name: torch.empty(0) for name in ("images", "captions")}
        for start in range(0, len(pairs), self.batch):
            if progress is not None:
                progress(start, len(pairs))
            ids = range(start, min(start + self.batch, len(pairs)))
            captions = [pairs.caption(row) for row in ids]
            made = {
                "images": self.image_tower.rows(self._images(pairs, ids), len(ids)),
                "captions": self.text_tower.rows(captions, len(ids)),
            }
            if start == 0:
                self._require_one_space(made["images"], made["captions"])
                shape = (len(pairs), made["images"].shape[1])
                rows = {name: room_for(shape, torch.float32) for name in made}
            for name, values_BD in made.items():
                if values_BD.shape[1] != rows[name].shape[1]:
                    raise DataError(
                        f"a tower gives {rows[name].shape[1]} columns for the first batch, and "
                        f"{values_BD.shape[1]} for rows {start} to {ids[-1]}. Give all the same."
                    )
                rows[name][start : start + len(ids)] = values_BD
        if progress is not None:
            progress(len(pairs), len(pairs))
        return {**rows, "labels": self._labels(rows["images"])}

    def _images(self, pairs: FoundPairs, ids: range) -> Tensor:
        pixels_BCSS = np.empty((len(ids), _CHANNELS, self.size, self.size), np.uint8)

        def decode(row: int) -> None:
            path = pairs.images[row]
            try:
                with Path(path).open("rb") as file:
                    _, pixels_BCSS[row - ids.start] = decode_file(
                        file, _CHANNELS, (self.size, self.size)
                    )
            except (DataError, OSError) as error:
                raise DataError(
                    f"image {row} of {pairs.source} ({path}) cannot be used: {error}. Replace it, "
                    "or remove the pair."
                ) from error

        for _ in map_rows(decode, ids, num_threads=threads_for(self.size**2)):
            pass
        return torch.from_numpy(pixels_BCSS).float() / 255

    def _labels(self, images_ND: Tensor) -> Tensor:
        if not self.classes:
            return nearest(images_ND, clusters(images_ND, self.num_clusters))
        parts = [
            self.text_tower.rows(list(part), len(part))
            for part in (
                self.classes[start : start + self.batch]
                for start in range(0, len(self.classes), self.batch)
            )
        ]
        return nearest(images_ND, torch.cat(parts))

    def _require_one_space(self, images_BD: Tensor, captions_BD: Tensor) -> None:
        image, text = images_BD.shape[1], captions_BD.shape[1]
        if image != text:
            raise DataError(
                f"the image tower {self.image_tower.spec} gives {image} columns, and the text "
                f"tower {self.text_tower.spec} {text}. Give two that project into one space, as "
                "CLIP's do."
            )
