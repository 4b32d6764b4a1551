"""The soup: learners that never talked to each other, merged into theta_p.

Greedy interpolation (Ro et al. 2023, section 3.4): learners are tried in
decreasing validation accuracy, as in Wortsman et al. 2022, "Model soups"
(arXiv:2203.05482); each is mixed into the soup at the ratio alpha that helps
most, or discarded. The uniform soup of Appendix C merges all of them alike.

This file decides and interpolates, it runs no model: `evaluate` does. At most
three models' worth of weights are in memory here: the soup, the ingredient,
and their mixture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lipt.common.errors import RunFailedError
from lipt.common.weights.specs import Weights
from lipt.coordinator.evaluation import Scored

# Reads one learner's weights: they are on disk, and may be many.
LoadWeights = Callable[[], Weights]
Evaluate = Callable[[Weights], Scored]
# Evaluations done, and how many there will be.
OnProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class Ingredient:
    """One learner's part in the soup."""

    index: int
    # Place in the soup's order, from 0.
    position: int
    # Alone, on the validation split.
    accuracy: float
    # (1 - alpha) soup + alpha ingredient; 0 where it was discarded.
    alpha: float
    kept: bool
    # Of the soup after it was offered.
    soup_accuracy: float


@dataclass(frozen=True)
class Soup:
    """theta_p, its accuracy, and its ingredients in the order in which they were offered."""

    weights: Weights
    accuracy: float
    ingredients: tuple[Ingredient, ...]


def interpolate(soup: Weights, ingredient: Weights, alpha: float) -> Weights:
    """(1 - alpha) soup + alpha ingredient, computed in float64.

    Args:
        soup: tensors by name. Not modified.
        ingredient: the same names, shapes and dtypes. Not modified.
        alpha: in [0, 1]; 0 and 1 give the soup's and the ingredient's exact values.

    Returns:
        New tensors of the same dtypes. Integers, such as a batch counter, are the soup's.
    """
    return {
        name: _mix(tensor, ingredient[name], alpha)
        if tensor.is_floating_point()
        else tensor.clone()
        for name, tensor in soup.items()
    }


def _mix(start: Tensor, end: Tensor, alpha: float) -> Tensor:
    if alpha in (0.0, 1.0):
        return (end if alpha else start).clone()
    start64 = start.to(torch.float64)
    # copy: a float64 model's own tensor must not be written to.
    return end.to(torch.float64, copy=True).sub_(start64).mul_(alpha).add_(start64).to(start.dtype)


def greedy_soup(
    learners: Sequence[LoadWeights],
    evaluate: Evaluate,
    *,
    num_alphas: int,
    on_progress: OnProgress,
) -> Soup:
    """Merge learners one after another, each only if it helps.

    The best learner starts the soup (ties: the lowest index). Each next one is
    tried at alpha = 1/num_alphas, 2/num_alphas, ..., 1, and enters with the alpha of
    the highest accuracy (ties: the smallest) if that is above the soup's.
    alpha = 1 is decided without an evaluation: it is the learner alone, which was
    evaluated and is not above the best one.

    Args:
        learners: each reads one learner's weights; called twice.
        evaluate: the accuracy of weights and the statistics that fit them. Called
            n + (n - 1) (num_alphas - 1) times.
        num_alphas: ratios tried per learner, at least 1.
        on_progress: told after every evaluation.

    Raises:
        RunFailedError: there is no learner.
    """
    score = _counted(evaluate, on_progress, len(learners) + (len(learners) - 1) * (num_alphas - 1))
    accuracies, best = _score_alone(learners, score)
    order = sorted(range(len(learners)), key=lambda index: (-accuracies[index], index))
    weights, soup_accuracy = learners[order[0]]() | best.mended, best.accuracy
    ingredients = [_ingredient(order[0], 0, accuracies, alpha=1.0, soup_accuracy=soup_accuracy)]
    for position, index in enumerate(order[1:], start=1):
        weights, soup_accuracy, alpha = _offer(
            weights, soup_accuracy, learners[index], score, num_alphas=num_alphas
        )
        ingredients.append(
            _ingredient(index, position, accuracies, alpha=alpha, soup_accuracy=soup_accuracy)
        )
    return Soup(weights, soup_accuracy, tuple(ingredients))


def _offer(
    soup: Weights, soup_accuracy: float, load: LoadWeights, score: Evaluate, *, num_alphas: int
) -> tuple[Weights, float, float]:
    """The soup after one learner was offered, its accuracy, and the learner's alpha.

    The learner is let go before the next one is read.
    """
    learner = load()
    alpha, mended = 0.0, Weights()
    for tried in (step / num_alphas for step in range(1, num_alphas)):
        scored = score(interpolate(soup, learner, tried))
        if scored.accuracy > soup_accuracy:
            alpha, mended, soup_accuracy = tried, scored.mended, scored.accuracy
    if alpha:
        # Mixed again, so that only one mixture is in memory at a time.
        soup = interpolate(soup, learner, alpha) | mended
    return soup, soup_accuracy, alpha


def uniform_soup(
    learners: Sequence[LoadWeights], evaluate: Evaluate, *, on_progress: OnProgress
) -> Soup:
    """The plain mean of all learners, summed in float64.

    Each learner's alpha is its share when it is stirred in, 1/1, 1/2, ..., 1/n, which is
    that mean. All enter at once, so every ingredient has the final accuracy.

    Args:
        learners: each reads one learner's weights; called twice.
        evaluate: as for `greedy_soup`. Called n + 1 times.
        on_progress: told after every evaluation.

    Raises:
        RunFailedError: there is no learner.
    """
    score = _counted(evaluate, on_progress, len(learners) + 1)
    accuracies, _ = _score_alone(learners, score)
    weights = _mean(learners)
    scored = score(weights)
    ingredients = (
        _ingredient(index, index, accuracies, alpha=1 / (index + 1), soup_accuracy=scored.accuracy)
        for index in range(len(learners))
    )
    return Soup(weights | scored.mended, scored.accuracy, tuple(ingredients))


def _score_alone(learners: Sequence[LoadWeights], score: Evaluate) -> tuple[list[float], Scored]:
    """Every learner's accuracy, and the first best one's evaluation."""
    accuracies: list[float] = []
    best: Scored | None = None
    for load in learners:
        scored = score(load())
        accuracies.append(scored.accuracy)
        if best is None or scored.accuracy > best.accuracy:
            best = scored
    if best is None:
        raise RunFailedError(
            "0 learners arrived, so there is no soup. Look at the learners' messages, or raise "
            "learners.deadline_seconds."
        )
    return accuracies, best


def _mean(learners: Sequence[LoadWeights]) -> Weights:
    """Floating-point tensors' means; integers are the first learner's."""
    first = learners[0]()
    sums = {
        name: tensor.to(torch.float64, copy=True)
        for name, tensor in first.items()
        if tensor.is_floating_point()
    }
    for load in learners[1:]:
        weights = load()
        for name, total in sums.items():
            total.add_(weights[name])
    return {
        name: (sums.pop(name) / len(learners)).to(tensor.dtype) if name in sums else tensor
        for name, tensor in first.items()
    }


def _ingredient(
    index: int, position: int, accuracies: Sequence[float], *, alpha: float, soup_accuracy: float
) -> Ingredient:
    return Ingredient(
        index=index,
        position=position,
        accuracy=accuracies[index],
        alpha=alpha,
        kept=alpha > 0.0,
        soup_accuracy=soup_accuracy,
    )


def _counted(evaluate: Evaluate, on_progress: OnProgress, total: int) -> Evaluate:
    done = 0

    def score(weights: Weights) -> Scored:
        nonlocal done
        scored = evaluate(weights)
        done += 1
        on_progress(done, total)
        return scored

    return score
