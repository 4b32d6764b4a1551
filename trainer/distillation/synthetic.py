"""Synthetic set: the images that were made so far, in a folder that a run can go on from.

`synthetic.safetensors` is what counts, in the format of `lipt.common.data.sources.distilled`;
`manifest.json` and `sheet.png` are for people. The images are bytes from the end of their stage on,
so that later stages see the very ones that are trained on.

Shapes: N images, C channels, H x W pixels.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from lipt.common.data.sources.distilled import (
    CLASS_NAMES,
    FILE_NAME,
    IMAGES,
    LABELS,
    MANIFEST,
    STAGES,
    read_distilled,
)
from lipt.common.images.formats import to_image
from lipt.common.weights.files import bytes_of, pack
from lipt.trainer.writing.files import write_atomically


@dataclass(frozen=True)
class SyntheticSet:
    """Images of some stages.

    Attributes:
        images_NCHW: uint8, by stage, then by class.
        labels_N: int64.
        stages_N: int64, the stage that each was made in, from 0.
        class_names: a name for every label.
        manifest: how they were made, as JSON.
    """

    images_NCHW: Tensor
    labels_N: Tensor
    stages_N: Tensor
    class_names: tuple[str, ...]
    manifest: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def empty(cls, shape: tuple[int, int, int], class_names: tuple[str, ...]) -> Self:
        """The set before the first stage, of images of C x H x W."""
        none = torch.empty(0, dtype=torch.int64)
        images_NCHW = torch.empty(0, *shape, dtype=torch.uint8)
        return cls(images_NCHW, none, none, class_names)

    @property
    def num_stages(self) -> int:
        """How many stages have made images."""
        return int(self.stages_N.max()) + 1 if len(self.stages_N) else 0

    @property
    def digest(self) -> str:
        """SHA-256 of the images, then the labels and the stages as little-endian int64."""
        parts = (bytes_of(part) for part in (self.images_NCHW, self.labels_N, self.stages_N))
        return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()

    def extended(self, images_NCHW: Tensor, labels_N: Tensor) -> Self:
        """With the images of one more stage behind those that are there."""
        stages_N = torch.full((len(labels_N),), self.num_stages)
        return type(self)(
            torch.cat([self.images_NCHW, images_NCHW]),
            torch.cat([self.labels_N, labels_N]),
            torch.cat([self.stages_N, stages_N]),
            self.class_names,
            self.manifest,
        )

    def until(self, stage: int) -> tuple[Tensor, Tensor]:
        """The images and labels of all stages up to one, it included."""
        within_N = self.stages_N <= stage
        return self.images_NCHW[within_N], self.labels_N[within_N]

    def save(self, folder: Path) -> None:
        """Write the three files; the set itself whole or not at all.

        Raises:
            OSError: the folder is missing or cannot be written to.
        """
        tensors = {IMAGES: self.images_NCHW, LABELS: self.labels_N, STAGES: self.stages_N}
        manifest = dict(self.manifest)
        metadata = {
            CLASS_NAMES: json.dumps(self.class_names),
            MANIFEST: json.dumps(manifest, sort_keys=True),
        }
        write_atomically(folder / FILE_NAME, pack(tensors, metadata))
        described = manifest | {"images": len(self.labels_N), "digest": self.digest}
        write_atomically(
            folder / "manifest.json", (json.dumps(described, indent=2) + "\n").encode()
        )
        write_atomically(folder / "sheet.png", self.sheet())

    @classmethod
    def load(cls, folder: Path) -> Self:
        """What `save` wrote.

        Raises:
            DataError: the folder holds no such set.
        """
        found = read_distilled(folder)
        return cls(
            found.images_NCHW, found.labels_N, found.stages_N, found.class_names, found.manifest
        )

    def sheet(self) -> bytes:
        """A PNG with a row for each class, its images by stage from left to right."""
        rows = []
        for label in range(len(self.class_names)):
            images = self.images_NCHW[self.labels_N == label]
            rows.append(torch.cat(list(images), dim=2))
        content = io.BytesIO()
        to_image(torch.cat(rows, dim=1).numpy()).save(content, "PNG")
        return content.getvalue()
