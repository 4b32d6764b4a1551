"""Evaluation: training on the synthetic images beside training on as many real ones.

All trainings have equal steps, first weights, order, augmentation and normalization: the synthetic
images follow the real ones in one data set, of which each training gets a subset.

Shapes: N real images, S synthetic ones, K those that are trained on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
    # Arguments of `fit`, by the seed.
    sources: dict[str, Callable[[int], dict[str, Any]]] = {}
    if synthetic.num_stages > 1:
        stages = synthetic.stages_N, both.fingerprint, ids_S
        sources[STAGED] = lambda _: {"reselect": Stages(*stages)}
    at_once = _of(both, ids_S, torch.ones(len(ids_S)), "distilled")
    sources[AT_ONCE] = lambda _: {"subset": at_once}
    per_class = len(ids_S) // len(synthetic.class_names)
    sources[RANDOM] = lambda seed: {"subset": _random(data, both, per_class, seed)}
    for name, subset in chosen.items():
        indices, weights = (torch.from_numpy(c.copy()) for c in (subset.indices, subset.weights))
        same = _of(both, indices, weights, subset.strategy)
        sources[name] = lambda _, same=same: {"subset": same}  # type: ignore[misc]
    num_steps = recipe.num_steps(len(ids_S))
    outcomes = []
    for name, source_of in sources.items():
        accuracies = []
        for seed in seeds:
            tell(f"training on {name}, seed {seed}")
            trained = fit(
                model,
                both,
                test=test,
                recipe=recipe.model_copy(update={"seed": seed, "steps": num_steps}),
                schedule=_AT_THE_END,
                device=device,
                allowed_modules=allowed_modules,
                **source_of(seed),
            )
            accuracies.append(trained.looks[-1].accuracy)
        num_images = len(chosen[name]) if name in chosen else len(ids_S)
        outcomes.append(Outcome(name, num_images, tuple(accuracies)))
    return outcomes


def _of(both: Dataset, ids_K: Tensor, weights_K: Tensor, name: str) -> Subset:
    return redrawn_subset(ids_K, weights_K, both.fingerprint, name)


def _random(data: Dataset, both: Dataset, per_class: int, seed: int) -> Subset:
    real = RealExamples.of(data, None, at_least=per_class)
    generator = derive_generator(seed, "distillation-random-images")
    labels = range(len(data.class_names))
    ids_K = torch.cat([real.draw(label, per_class, generator) for label in labels])
    return _of(both, ids_K, torch.ones(len(ids_K)), "random")


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
