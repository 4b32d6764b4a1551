"""Soup: independently trained learners, merged into theta_p.

Learners are tried in decreasing validation accuracy, and mixed in or discarded. The greedy soup is
the mean of those that do not lower the accuracy (Wortsman et al. 2022, "Model soups",
arXiv:2203.05482): one evaluation each. Greedy interpolation (Ro et al. 2023, section 3.4) tries
several ratios alpha for each learner and takes the best. The uniform soup of Appendix C averages
all; a weighted one does by given shares. Mixtures are made tensor by tensor, so memory does not
grow with the number of learners.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from lipt.common.errors import RunFailedError
from lipt.common.tensor_files import Weights
from lipt.core.pretraining.evaluation import OpenWeights, Scored
from lipt.core.pretraining.results import Ingredient

# Scores of several weights, in order. Evaluation may stop for weights that cannot exceed the floor.
Evaluate = Callable[[Sequence[OpenWeights], float], Iterable[Scored]]
# Number of learners scored alone and offered to the soup, and the total of both.
OnProgress = Callable[[int, int], None]
# An offered learner's index in the sequence, and its part in the soup.
OnIngredient = Callable[[int, Ingredient], None]
# Values mixed at a time: their float64 copies stay in a CPU's cache, and PyTorch does not share
# them among threads.
_VALUES_AT_ONCE = 2**15


@dataclass(frozen=True)
class Soup:
    """theta_p, its accuracy, and its ingredients by learner, in the order they were offered in."""

    weights: Weights
    accuracy: float
    ingredients: dict[int, Ingredient]


@dataclass(frozen=True, eq=False)
class Interpolated(Mapping[str, Tensor]):
    """(1 - alpha) soup + alpha ingredient, computed in float64, anew at every access.

    Tensors have the soup's dtype; integers, such as a batch counter, are the soup's. alpha 0 and 1
    give the soup's and the ingredient's exact values.
    """

    soup: Weights
    ingredient: Weights
    alpha: float

    def __getitem__(self, name: str) -> Tensor:
        start, end = self.soup[name], self.ingredient[name]
        # The same tensor if learners leave it unchanged.
        if self.alpha == 0 or start is end or not start.is_floating_point():
            return start.clone()
        return end.clone() if self.alpha == 1 else _mix(start, end, self.alpha)

    def __iter__(self) -> Iterator[str]:
        return iter(self.soup)

    def __len__(self) -> int:
        return len(self.soup)


def _mix(start: Tensor, end: Tensor, alpha: float) -> Tensor:
    mixed = torch.empty(start.shape, dtype=start.dtype)
    for mixed_V, start_V, end_V in _pieces(mixed, start, end):
        start64_V = start_V.to(torch.float64)
        # copy: a float64 model's own tensor must not be overwritten.
        end64_V = end_V.to(torch.float64, copy=True)
        mixed_V.copy_(end64_V.sub_(start64_V).mul_(alpha).add_(start64_V))
    return mixed


def _pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    # Views of the same values of each; only views of contiguous tensors are writable.
    flat = (torch.split(tensor.reshape(-1), _VALUES_AT_ONCE) for tensor in tensors)
    return zip(*flat, strict=True)


def greedy_soup(
    learners: Sequence[OpenWeights],
    evaluate: Evaluate,
    *,
    num_alphas: int | None = None,
    on_progress: OnProgress,
    on_ingredient: OnIngredient = lambda _index, _ingredient: None,
) -> Soup:
    """Merge learners one after another, each only if it helps.

    The best learner starts the soup (ties: the lowest index). Each next one is tried as one more
    part of the mean, at alpha = 1 / (kept + 1), and enters unless the accuracy falls. With
    `num_alphas` it is tried at alpha = 1/num_alphas, 2/num_alphas, ..., and enters with the alpha
    of the highest accuracy (ties: the smallest) if that is above the soup's. alpha = 1 never beats
    the best learner.
    RunFailedError if there is no learner.
    """
    total = 2 * len(learners) - 1
    accuracies, best = _score_alone(learners, evaluate, lambda done: on_progress(done, total))
    order = sorted(range(len(learners)), key=lambda index: (-accuracies[index], index))
    weights, soup_accuracy, alpha = Weights(), best.accuracy, 1.0
    ingredients: dict[int, Ingredient] = {}
    for position, index in enumerate(order):
        if position == 0:
            weights = dict(learners[index]()) | best.statistics
        else:
            if num_alphas is None:
                kept = sum(item.kept for item in ingredients.values())
                alphas, floor = [1 / (kept + 1)], math.nextafter(soup_accuracy, -math.inf)
            else:
                alphas = [number / num_alphas for number in range(1, num_alphas)]
                floor = soup_accuracy
            weights, alpha, accuracy = _offer(weights, floor, learners[index], evaluate, alphas)
            soup_accuracy = max(soup_accuracy, accuracy)
            on_progress(len(learners) + position, total)
        ingredients[index] = Ingredient(
            position=position,
            accuracy=accuracies[index],
            soup_accuracy=soup_accuracy,
            alpha=alpha,
            kept=alpha > 0.0,
        )
        on_ingredient(index, ingredients[index])
    return Soup(weights, soup_accuracy, ingredients)


def _offer(
    soup: Weights,
    floor: float,
    opened: OpenWeights,
    evaluate: Evaluate,
    alphas: Sequence[float],
) -> tuple[Weights, float, float]:
    # Read once as a whole, so every mixture uses the verified content.
    learner = dict(opened())
    mixtures = [partial(Interpolated, soup, learner, alpha) for alpha in alphas]
    best, statistics = 0.0, Weights()
    for alpha, scored in zip(alphas, evaluate(mixtures, floor), strict=True):
        if scored.accuracy > floor:
            best, statistics, floor = alpha, scored.statistics, scored.accuracy
    if best:
        # Mixed again, in place: each old tensor is freed when its mixture is made.
        for name, tensor in Interpolated(soup, learner, best).items():
            soup[name] = tensor
    return soup | statistics, best, floor


def weighted_soup(
    learners: Sequence[OpenWeights],
    shares: Sequence[float] | None,
    evaluate: Evaluate,
    *,
    on_progress: OnProgress,
) -> Soup:
    """The mean of all learners in float64, by `shares` of sum 1, or the plain one.

    alpha is a learner's share when it enters.
    """
    total = len(learners) + 1
    accuracies, _ = _score_alone(learners, evaluate, lambda done: on_progress(done, total))
    parts = [1.0] * len(learners) if shares is None else list(shares)
    weights, sums = _mean(learners, parts), list(accumulate(parts))
    [scored] = evaluate([lambda: weights], -math.inf)
    on_progress(total, total)
    ingredients = {
        index: Ingredient(
            position=index,
            accuracy=accuracy,
            soup_accuracy=scored.accuracy,
            alpha=parts[index] / sums[index] if sums[index] else 0.0,
            kept=parts[index] > 0,
        )
        for index, accuracy in enumerate(accuracies)
    }
    return Soup(weights | scored.statistics, scored.accuracy, ingredients)


def _score_alone(
    learners: Sequence[OpenWeights], evaluate: Evaluate, on_scored: Callable[[int], None]
) -> tuple[list[float], Scored]:
    accuracies: list[float] = []
    best: Scored | None = None
    for scored in evaluate(learners, -math.inf):
        accuracies.append(scored.accuracy)
        on_scored(len(accuracies))
        if best is None or scored.accuracy > best.accuracy:
            best = scored
    if best is None:
        raise RunFailedError(
            "0 learners arrived, so there is no soup. Look at the learners' messages, or raise "
            "learners.deadline_seconds."
        )
    return accuracies, best


def _mean(learners: Sequence[OpenWeights], parts: Sequence[float]) -> Weights:
    # The first learner's integers, and of other tensors the type alone.
    first, sums = Weights(), Weights()
    for learner, part in zip(learners, parts, strict=True):
        # One file is open at a time, and a tensor decoded on access.
        for name, tensor in learner().items():
            if name in sums:
                for sum_V, tensor_V in _pieces(sums[name], tensor):
                    sum_V.add_(tensor_V, alpha=part)
            elif name not in first and tensor.is_floating_point():
                first[name] = tensor.new_empty(0)
                sums[name] = tensor.to(
                    torch.float64, copy=True, memory_format=torch.contiguous_format
                ).mul_(part)
            else:
                first.setdefault(name, tensor)
    # Each sum is freed when its mean is made.
    return {
        name: sums.pop(name).div_(math.fsum(parts)).to(tensor.dtype) if name in sums else tensor
        for name, tensor in first.items()
    }
