"""Task parts: the data and the model of a scoring task, wherever it is carried out."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import torch
from torch import nn

from lipt.common.config.tasks import ScoringTask
from lipt.common.data import Bearable, Dataset, open_dataset, without_quarantined
from lipt.common.inputs.specs import spec_of
from lipt.common.models.registry import load_model


def open_task_data(
    task: ScoringTask,
    source: str,
    *,
    image_size: int | None,
    allowed_modules: Collection[str],
) -> Dataset:
    """The data that a task may be of, without what it leaves out.

    Args:
        task: says what that is; whether the data is its own, `is_data_of` tells.
        source: as in `open_dataset`, like the others.
        image_size: likewise.
        allowed_modules: likewise.

    Raises:
        LiptError: it cannot be opened.
    """
    bearable = Bearable(known=task.quarantined)
    return without_quarantined(
        open_dataset(
            source, image_size=image_size, allowed_modules=allowed_modules, bearable=bearable
        )
    )


def is_data_of(task: ScoringTask, dataset: Dataset, fingerprint: str) -> bool:
    """Whether a task is of this data, which has this fingerprint of the task's kind."""
    return fingerprint == task.fingerprint and dataset.inputs == spec_of(task.inputs)


def load_task_model(
    task: ScoringTask,
    weights: bytes | Path,
    *,
    device: torch.device,
    allowed_modules: Collection[str],
    max_bytes: int,
) -> nn.Module:
    """The model that a task's examples are passed through; arguments and errors of `load_model`."""
    return load_model(
        task.model,
        weights,
        num_classes=task.num_classes,
        inputs=spec_of(task.inputs),
        device=device,
        seed=task.seed,
        allowed_modules=allowed_modules,
        max_bytes=max_bytes,
    )
