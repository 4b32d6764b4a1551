"""Evaluation: training on the synthetic images beside training on as many real ones.

All trainings have equal steps, first weights, order, augmentation and normalization: the synthetic
images follow the real ones in one data set, of which each training gets a subset.

Shapes: N real images, S synthetic ones, K those that are trained on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lipt.common.data import Dataset
from lipt.common.data.dataset import in_memory
from lipt.common.determinism import derive_generator
from lipt.trainer.distillation.synthetic import RealExamples, Stages, SyntheticSet
from lipt.trainer.main_training import Recipe, Schedule, fit
from lipt.trainer.main_training.examples import require_for
from lipt.trainer.resampling.sources import redrawn_subset
from lipt.trainer.subsets.subset import Subset

STAGED, AT_ONCE, RANDOM = "distilled, stage by stage", "distilled, all at once", "random"

_AT_THE_END = Schedule(test_at=(), subset_at=None)


@dataclass(frozen=True)
class Outcome:
    """Test accuracies of training on some images, one for each seed."""

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
        synthetic: all stages.
        data: the distilled data, whose images are held in memory.
        test: for the accuracy.
        model: the trained model's name, which may be another than the distillation's.
        recipe: how to train; each training takes its `num_steps` for the synthetic images.
        seeds: of first weights, order, and the random images.
        chosen: subsets of `data` by name.
        device: "auto", "cpu", "cuda" or "cuda:N".
        allowed_modules: modules that `model` may be imported from.
        tell: called with a line of progress.

    Raises:
        DataError: the test set has other images or classes.
        SubsetError: a subset is empty, or another data set's.
        TrainingDivergedError: the loss is no longer finite.
    """
    for subset in chosen.values():
        require_for(subset, data)
    both = _both(data, synthetic)
    ids_S = len(data) + torch.arange(len(synthetic.labels_N))
    per_class = len(synthetic.labels_N) // len(synthetic.class_names)

    def of(ids_K: Tensor, weights_K: Tensor, name: str) -> Subset:
        return redrawn_subset(ids_K, weights_K, both.fingerprint, name)

    def random(seed: int) -> Subset:
        real = RealExamples.of(data, None, at_least=per_class)
        generator = derive_generator(seed, "distillation-random-images")
        labels = range(len(data.class_names))
        ids_K = torch.cat([real.draw(label, per_class, generator) for label in labels])
        return of(ids_K, torch.ones(len(ids_K)), "random")

    sources: dict[str, Callable[[int], Subset | Stages]] = {}
    if synthetic.num_stages > 1:
        sources[STAGED] = lambda _: Stages(synthetic.stages_N, both.fingerprint, ids_S)
    sources[AT_ONCE] = lambda _: of(ids_S, torch.ones(len(ids_S)), "distilled")
    sources[RANDOM] = random
    for name, subset in chosen.items():
        columns = (torch.from_numpy(column.copy()) for column in (subset.indices, subset.weights))
        same = of(*columns, subset.strategy)
        sources[name] = lambda _, same=same: same  # type: ignore[misc]
    num_steps = recipe.num_steps(len(synthetic.labels_N))
    outcomes = []
    for name, source_of in sources.items():
        accuracies, num_images = [], 0
        for seed in seeds:
            tell(f"training on {name}, seed {seed}")
            source = source_of(seed)
            fixed = isinstance(source, Subset)
            trained = fit(
                model,
                both,
                subset=source if fixed else None,
                test=test,
                recipe=recipe.model_copy(update={"seed": seed, "steps": num_steps}),
                schedule=_AT_THE_END,
                device=device,
                reselect=None if fixed else source,
                allowed_modules=allowed_modules,
            )
            accuracies.append(trained.looks[-1].accuracy)
            num_images = len(source if fixed else source.subset)
        outcomes.append(Outcome(name, num_images, tuple(accuracies)))
    return outcomes


def _both(data: Dataset, synthetic: SyntheticSet) -> Dataset:
    """The real images and, behind them, the synthetic ones."""
    images_NCHW = data.images(torch.arange(len(data)))
    digests = f"{data.fingerprint}/{synthetic.digest}"
    return in_memory(
        f"{data.source} and distilled images",
        data.class_names,
        torch.cat([data.labels_N, synthetic.labels_N]),
        hashlib.sha256(digests.encode()).hexdigest(),
        torch.cat([images_NCHW, synthetic.images_NCHW]),
    )
