"""Evaluation: what training on the synthetic images is worth beside as many real ones.

All are trained on alike: equal steps, first weights, order and augmentation, and the same figures
that inputs are scaled by, which are those of the real data. For that, the synthetic images
are put behind the real ones as one data set, of which each training gets a subset.

Shapes: N real images, S synthetic ones, K those that are trained on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from lipt.common.data import Dataset
from lipt.common.data.dataset import in_memory
from lipt.common.determinism import derive_generator
from lipt.trainer.distillation.synthetic import RealExamples, Stages, SyntheticSet
from lipt.trainer.main_training import Recipe, Schedule, fit
from lipt.trainer.main_training.examples import SubsetSource, require_for
from lipt.trainer.resampling.sources import redrawn_subset
from lipt.trainer.subsets.subset import Subset

STAGED, AT_ONCE, RANDOM = "distilled, stage by stage", "distilled, all at once", "random"

# Nothing is looked at on the way.
_AT_THE_END = Schedule(test_at=(), subset_at=None)


@dataclass(frozen=True)
class Outcome:
    """What training on some images came to.

    Attributes:
        name: of the images.
        num_images: how many there are.
        accuracies: on the test set, one for each seed.
    """

    name: str
    num_images: int
    accuracies: tuple[float, ...]


def evaluate(
    synthetic: SyntheticSet,
    data: Dataset,
    test: Dataset,
    model: str,
    recipe: Recipe,
    *,
    seeds: Sequence[int],
    chosen: Mapping[str, Subset],
    device: str = "auto",
    allowed_modules: Collection[str] = (),
    tell: Callable[[str], object] = lambda _: None,
) -> list[Outcome]:
    """Train on the synthetic images, on as many random ones, and on chosen subsets.

    Args:
        synthetic: what was distilled; all its stages.
        data: what it was distilled from, whose images are held in memory.
        test: for the accuracy.
        model: the name of the model that is trained, which may be another than it was made with.
        recipe: how to train; each training takes its `num_steps` for the synthetic images.
        seeds: of first weights and order, and of the random images' draw.
        chosen: subsets of `data` by name.
        device: "auto", "cpu", "cuda" or "cuda:N".
        allowed_modules: modules that `model` may be imported from.
        tell: called with a line on how far it is.

    Raises:
        DataError: the test set has other images or classes.
        SubsetError: a subset is empty, or another data set's.
        TrainingDivergedError: the loss is no longer finite.
    """
    for subset in chosen.values():
        require_for(subset, data)
    beside = _Beside(data, synthetic)
    per_class = len(synthetic.labels_N) // len(synthetic.class_names)
    num_steps = recipe.num_steps(len(synthetic.labels_N))
    sources: dict[str, Callable[[int], SubsetSource]] = {}
    if synthetic.num_stages > 1:
        sources[STAGED] = lambda _: beside.distilled(synthetic.stages_N)
    sources[AT_ONCE] = lambda _: beside.distilled(torch.zeros_like(synthetic.stages_N))
    sources[RANDOM] = lambda seed: beside.random(per_class, seed)
    for strategy, subset in chosen.items():
        sources[strategy] = partial(beside.chosen, subset)
    outcomes = []
    for name, source_of in sources.items():
        accuracies, num_images = [], 0
        for seed in seeds:
            tell(f"training on {name}, seed {seed}")
            source = source_of(seed)
            trained = fit(
                model,
                beside.dataset,
                test=test,
                recipe=recipe.model_copy(update={"seed": seed, "steps": num_steps}),
                schedule=_AT_THE_END,
                device=device,
                reselect=source,
                allowed_modules=allowed_modules,
            )
            accuracies.append(trained.looks[-1].accuracy)
            num_images = len(source.subset)
        outcomes.append(Outcome(name, num_images, tuple(accuracies)))
    return outcomes


class _Beside:
    """The real images and, behind them, the synthetic ones, as one data set."""

    def __init__(self, data: Dataset, synthetic: SyntheticSet) -> None:
        self._data, self._num_real = data, len(data)
        images_NCHW = data.images(torch.arange(len(data)))
        both = f"{data.fingerprint}/{synthetic.digest}"
        self.dataset = in_memory(
            f"{data.source} and distilled images",
            data.class_names,
            torch.cat([data.labels_N, synthetic.labels_N]),
            hashlib.sha256(both.encode()).hexdigest(),
            torch.cat([images_NCHW, synthetic.images_NCHW]),
        )

    def distilled(self, stages_S: Tensor) -> SubsetSource:
        """The synthetic images, as of these stages."""
        ids_S = self._num_real + torch.arange(len(stages_S))
        return Stages(stages_S, self.dataset.fingerprint, ids_S)

    def random(self, per_class: int, seed: int) -> SubsetSource:
        """So many real images of each class, drawn by the seed."""
        real = RealExamples.of(self._data, None, at_least=per_class)
        generator = derive_generator(seed, "distillation-random-images")
        labels = range(len(self._data.class_names))
        ids_K = torch.cat([real.draw(label, per_class, generator) for label in labels])
        return self._fixed(ids_K, torch.ones(len(ids_K)), "random")

    def chosen(self, subset: Subset, _seed: int) -> SubsetSource:
        """A subset's images with its weights, whatever the seed."""
        ids_K, weights_K = (
            torch.from_numpy(column.copy()) for column in (subset.indices, subset.weights)
        )
        return self._fixed(ids_K, weights_K, subset.strategy)

    def _fixed(self, ids_K: Tensor, weights_K: Tensor, name: str) -> SubsetSource:
        subset = redrawn_subset(ids_K, weights_K, self.dataset.fingerprint, name)
        return _Fixed(subset)


class _Fixed:
    num_epochs: int | None = None

    def __init__(self, subset: Subset) -> None:
        self.subset = subset
        self.identity = {"subset": subset.digest}

    def before_epoch(self, epoch: int) -> Subset:  # noqa: ARG002 - the same in all of them
        """The images of an epoch."""
        return self.subset
