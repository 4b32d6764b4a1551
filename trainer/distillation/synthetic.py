"""Image sets of a distillation: real images by class, and synthetic ones.

Shapes: N examples, B drawn ones, M of a class.
"""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from lipt.common.data import Dataset
from lipt.common.data.sources.files import (
    CLASS_NAMES,
    FILE_NAME,
    IMAGES,
    LABELS,
    MANIFEST,
    STAGES,
    DistilledFile,
    read_distilled,
)
from lipt.common.errors import DataError
from lipt.common.images.formats import to_image
from lipt.common.inputs.specs import ImageSpec
from lipt.common.targets.kinds import TargetKind
from lipt.common.weights.files import bytes_of, pack
from lipt.trainer.files import write_atomically
from lipt.trainer.main_training.steps import require_for
from lipt.trainer.subsets.subset import Subset


@dataclass(frozen=True)
class RealExamples:
    """Ascending row numbers of images by class, int64, and each row's weight in a gradient."""

    dataset: Dataset
    ids: tuple[Tensor, ...]
    weights_N: Tensor

    @classmethod
    def of(cls, dataset: Dataset, subset: Subset | None, *, at_least: int) -> RealExamples:
        """Take all images, or a weighted subset's; DataError for too few images of a class."""
        if not isinstance(dataset.inputs, ImageSpec) or dataset.target.kind is not TargetKind.CLASS:
            raise DataError(
                f"{dataset.source} has {dataset.inputs} and {dataset.target.kind.words} targets; "
                "only images with one class each are distilled. Open such a set."
            )
        ids_K, weights_N = torch.arange(len(dataset)), torch.ones(len(dataset))
        if subset is not None:
            require_for(subset, dataset)
            ids_K = torch.from_numpy(subset.indices.copy())
            weights_N = torch.zeros(len(dataset))
            weights_N[ids_K] = torch.from_numpy(subset.weights.copy())
            ids_K = ids_K[weights_N[ids_K] > 0]
        labels_K = dataset.labels_N[ids_K]
        ids = tuple(ids_K[labels_K == label] for label in range(len(dataset.class_names)))
        for name, ids_M in zip(dataset.class_names, ids, strict=True):
            if len(ids_M) < at_least:
                raise DataError(
                    f"the class {name!r} of {dataset.source} has {len(ids_M)} images to distil "
                    f"{at_least} from. Ask for fewer per class, or give more images."
                )
        return cls(dataset, ids, weights_N)

    def draw(self, label: int, size: int, generator: torch.Generator) -> Tensor:
        """Draw up to `size` distinct row numbers of a class."""
        ids_M = self.ids[label]
        return ids_M[torch.randperm(len(ids_M), generator=generator)[:size]]

    def pixels(self, ids_B: Tensor) -> Tensor:
        """Return images as float32 in 0..1, B x C x H x W."""
        return self.dataset.images(ids_B).to(torch.float32) / 255


@dataclass(frozen=True)
class SyntheticSet(DistilledFile):
    """Images (uint8, by stage, then by class) of finished stages, counted from 0."""

    @classmethod
    def empty(
        cls,
        shape: tuple[int, int, int],
        class_names: tuple[str, ...],
        manifest: dict[str, Any] | None = None,
    ) -> Self:
        """Return the set before the first stage, with images of C x H x W."""
        none = torch.empty(0, dtype=torch.int64)
        images_NCHW = torch.empty(0, *shape, dtype=torch.uint8)
        return cls(images_NCHW, none, none, class_names, manifest or {})

    @property
    def num_stages(self) -> int:
        """Number of finished stages."""
        return int(self.stages_N.max()) + 1 if len(self.stages_N) else 0

    @property
    def digest(self) -> str:
        """SHA-256 of the images, then the labels and the stages as little-endian int64."""
        parts = (bytes_of(part) for part in (self.images_NCHW, self.labels_N, self.stages_N))
        return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()

    def extended(self, images_NCHW: Tensor, labels_N: Tensor) -> Self:
        """Add the images of one stage."""
        stages_N = torch.full((len(labels_N),), self.num_stages)
        return replace(
            self,
            images_NCHW=torch.cat([self.images_NCHW, images_NCHW]),
            labels_N=torch.cat([self.labels_N, labels_N]),
            stages_N=torch.cat([self.stages_N, stages_N]),
        )

    def save(self, folder: Path) -> None:
        """Write `synthetic.safetensors`, and `manifest.json` and `sheet.png` for inspection."""
        tensors = {IMAGES: self.images_NCHW, LABELS: self.labels_N, STAGES: self.stages_N}
        metadata = {
            CLASS_NAMES: json.dumps(self.class_names),
            MANIFEST: json.dumps(self.manifest, sort_keys=True),
        }
        write_atomically(folder / FILE_NAME, pack(tensors, metadata))
        described = self.manifest | {"images": len(self.labels_N), "digest": self.digest}
        text = json.dumps(described, indent=2) + "\n"
        write_atomically(folder / "manifest.json", text.encode())
        write_atomically(folder / "sheet.png", self.sheet())

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what `save` wrote; DataError if the folder holds no such set."""
        return cls(**vars(read_distilled(folder)))

    def sheet(self) -> bytes:
        """Return a PNG with one row per class, its images by stage from left to right."""
        rows = [
            torch.cat(list(self.images_NCHW[self.labels_N == label]), dim=2)
            for label in range(len(self.class_names))
        ]
        content = io.BytesIO()
        to_image(torch.cat(rows, dim=1).numpy()).save(content, "PNG")
        return content.getvalue()
