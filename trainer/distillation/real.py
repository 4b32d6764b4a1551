"""Real examples: what a stage is distilled from, by class.

Shapes: N examples of the data set, B drawn ones, M of a class.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lipt.common.data import Dataset
from lipt.common.errors import DataError
from lipt.common.inputs.specs import ImageSpec
from lipt.common.targets.kinds import TargetKind
from lipt.trainer.main_training.examples import require_for
from lipt.trainer.subsets.subset import Subset


@dataclass(frozen=True)
class RealExamples:
    """Some of a data set's images.

    Attributes:
        dataset: what they are of.
        ids: for each class its row numbers, int64, ascending.
        weights_N: how much each row counts in a gradient.
    """

    dataset: Dataset
    ids: tuple[Tensor, ...]
    weights_N: Tensor

    @classmethod
    def of(cls, dataset: Dataset, subset: Subset | None, *, at_least: int) -> RealExamples:
        """All of a data set's images, or those of a subset with its weights.

        Args:
            dataset: of images with a class each.
            subset: of these; None for all.
            at_least: how many of each class there have to be.

        Raises:
            DataError: there are no images, no classes, or fewer of one.
            SubsetError: the subset is another data set's.
        """
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
        """Row numbers of a class, all different; all of the class where it has no more."""
        ids_M = self.ids[label]
        return ids_M[torch.randperm(len(ids_M), generator=generator)[:size]]

    def pixels(self, ids_B: Tensor) -> Tensor:
        """Images as float32 from 0 to 1, B x C x H x W."""
        return self.dataset.images(ids_B).to(torch.float32) / 255

    def without_easiest(self, losses_N: Tensor, share: float, *, at_least: int) -> RealExamples:
        """Without a share of each class, those with the lowest losses.

        Args:
            losses_N: of all rows of the data set; only those of these examples are looked at.
            share: in [0, 1).
            at_least: how many of each class stay in any case.
        """
        kept = []
        for ids_M in self.ids:
            num_kept = max(at_least, math.ceil((1 - share) * len(ids_M)))
            hardest_M = losses_N[ids_M].argsort(descending=True, stable=True)
            kept.append(ids_M[hardest_M[:num_kept]].sort().values)
        return replace(self, ids=tuple(kept))
