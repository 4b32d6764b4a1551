"""Distilled set: synthetic images in one safetensors file, as `lipt distill` writes them.

A folder holds `synthetic.safetensors` with

    images_NCHW   uint8, by stage, then by class
    labels_N      int64, class numbers from 0
    stages_N      int64, the stage that each image was made in, from 0

and in its metadata `class_names`, a JSON list, and `manifest`, JSON of how they were made.

Shapes: N images, C channels, H x W pixels.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lipt.common.data.sources.index import Stamp
from lipt.common.data.sources.rows import ArrayRows, require_labels
from lipt.common.errors import BlobTooLargeError, DataError, WeightsError
from lipt.common.weights.files import read_container

FILE_NAME = "synthetic.safetensors"
IMAGES, LABELS, STAGES = "images_NCHW", "labels_N", "stages_N"
CLASS_NAMES, MANIFEST = "class_names", "manifest"

# A file of one's own; its header may still not take more than this.
_MAX_BYTES = 2**40
_MAX_METADATA_BYTES = 2**22


@dataclass(frozen=True)
class DistilledFile:
    """The file's contents, checked."""

    images_NCHW: Tensor
    labels_N: Tensor
    stages_N: Tensor
    class_names: tuple[str, ...]
    manifest: dict[str, Any]


def read_distilled(folder: Path) -> DistilledFile:
    """The synthetic images of a folder."""
    path = folder / FILE_NAME

    def refused(problem: object) -> DataError:
        return DataError(f"{path} is no distilled set: {problem}. Name a folder of 'lipt distill'.")

    try:
        container = read_container(
            path, max_bytes=_MAX_BYTES, max_tensors=3, max_metadata_bytes=_MAX_METADATA_BYTES
        )
        names = json.loads(container.metadata[CLASS_NAMES])
        manifest = json.loads(container.metadata[MANIFEST])
        images, labels, stages = (container.tensor(name) for name in (IMAGES, LABELS, STAGES))
    except (WeightsError, BlobTooLargeError) as error:
        raise refused(error.problem) from error
    except KeyError as error:
        raise refused(f"it lacks {error}") from error
    except (ValueError, RecursionError) as error:
        raise refused(f"its metadata is not JSON ({error})") from error
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise refused(f"{CLASS_NAMES} is not a list of texts")
    if not isinstance(manifest, dict):
        raise refused(f"{MANIFEST} is not an object")
    size = len(images) if images.ndim == 4 else 0
    fitting = images.dtype == torch.uint8 and labels.dtype == stages.dtype == torch.int64
    if not size or not fitting or not labels.shape == stages.shape == (size,):
        raise refused(
            f"{IMAGES} is {images.dtype} {list(images.shape)}, {LABELS} {labels.dtype} "
            f"{list(labels.shape)} and {STAGES} {stages.dtype} {list(stages.shape)}"
        )
    numbers = sorted(set(stages.tolist()))
    if numbers != list(range(len(numbers))):
        raise refused("its stages are not numbered from 0")
    require_labels(labels, len(names), str(path))
    return DistilledFile(images, labels, stages, tuple(names), manifest)


def distilled_rows(source: str, path: Path) -> ArrayRows:
    """The synthetic images of a folder as a data set; raises as `read_distilled`."""
    stamp = Stamp.of([path / FILE_NAME])
    found = read_distilled(path)
    images_NCHW = found.images_NCHW.numpy()
    return ArrayRows(source, found.class_names, found.labels_N, images_NCHW, stamp=stamp)
