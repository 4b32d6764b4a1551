"""Stages in training: the images of the first stage, then those of two, and in the end of all.

A source of main training's subsets, as each stage was made for a model that has been trained on the
ones before.

Shapes: N images.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lipt.trainer.main_training.redrawn import redrawn_subset
from lipt.trainer.subsets.subset import Subset


class Stages:
    """Gives each stage an equal share of the epochs: `fit(model, data, reselect=Stages(...))`.

    Args:
        stages_N: the stage of each synthetic image, from 0, int64.
        ids_N: their row numbers in the data set that is trained on; 0..N-1 where None.
        fingerprint: of that data set.
    """

    num_epochs: int | None = None

    def __init__(self, stages_N: Tensor, fingerprint: str, ids_N: Tensor | None = None) -> None:
        self._stages_N, self._fingerprint = stages_N, fingerprint
        self._ids_N = torch.arange(len(stages_N)) if ids_N is None else ids_N
        self._num_stages = int(stages_N.max()) + 1
        self.identity: Mapping[str, Any] = {"stages": self._num_stages}
        self.subset = self._until(0)

    def before_epoch(self, epoch: int) -> Subset:
        """The images of an epoch, counted from 0."""
        share = epoch * self._num_stages // max(1, self.num_epochs or self._num_stages)
        self.subset = self._until(min(share, self._num_stages - 1))
        return self.subset

    def _until(self, stage: int) -> Subset:
        ids_K = self._ids_N[self._stages_N <= stage]
        return redrawn_subset(ids_K, torch.ones(len(ids_K)), self._fingerprint, "distilled")
