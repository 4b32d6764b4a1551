"""Soup: learners that never talked to each other, merged into theta_p.

Greedy interpolation (Ro et al. 2023, section 3.4): learners are tried in
decreasing validation accuracy, as in Wortsman et al. 2022, "Model soups"
(arXiv:2203.05482); each is mixed into the soup at the ratio alpha that helps
most, or discarded. The uniform soup of Appendix C merges all of them alike.

This file decides and interpolates, it runs no model: `evaluate` does. Mixtures are
made tensor by tensor, straight into the model that evaluates them, so that however
many learners there are, three models' worth of weights are in memory, and a tensor in
the making: the soup, the ingredient, and that model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lipt.common.errors import RunFailedError
from lipt.common.weights.specs import Weights
from lipt.coordinator.pretraining.evaluation import Scored
from lipt.coordinator.state.records import IngredientRecord

# Opens one learner's weights: they are on disk, and may be many. Each access reads a tensor.
OpenWeights = Callable[[], Mapping[str, Tensor]]
# Asks for each tensor once, and keeps none.
Evaluate = Callable[[Mapping[str, Tensor]], Scored]
# Evaluations done, and how many there will be.
OnProgress = Callable[[int, int], None]
# A learner that was offered, by its place in the sequence, and what became of it.
OnIngredient = Callable[[int, IngredientRecord], None]
# Values that are mixed at a time: float64 copies of so many stay in a CPU's cache, and
# PyTorch would share more of them among threads, which then wait for each other every time.
_VALUES_AT_ONCE = 2**15


@dataclass(frozen=True)
class Soup:
    """theta_p, its accuracy, and its ingredients by learner, in the order they were offered in."""

    weights: Weights
    accuracy: float
    ingredients: dict[int, IngredientRecord]


@dataclass(frozen=True, eq=False)
class Mixture(Mapping[str, Tensor]):
    """(1 - alpha) soup + alpha ingredient, computed in float64; made when it is asked for.

    Every access gives a new tensor of the soup's dtype. Integers, such as a batch counter,
    are the soup's.

    Attributes:
        soup: tensors by name. Not modified.
        ingredient: the same names, shapes and dtypes. Not modified.
        alpha: in [0, 1]; 0 and 1 give the soup's and the ingredient's exact values.
    """

    soup: Weights
    ingredient: Weights
    alpha: float

    def __getitem__(self, name: str) -> Tensor:
        """Mix one tensor."""
        start, end = self.soup[name], self.ingredient[name]
        # One and the same where learners leave it as it is in theta*.
        if self.alpha == 0 or start is end or not start.is_floating_point():
            return start.clone()
        return end.clone() if self.alpha == 1 else _mix(start, end, self.alpha)

    def __iter__(self) -> Iterator[str]:
        """The names, in the soup's order."""
        return iter(self.soup)

    def __len__(self) -> int:
        """How many tensors there are."""
        return len(self.soup)


def _mix(start: Tensor, end: Tensor, alpha: float) -> Tensor:
    mixed = torch.empty(start.shape, dtype=start.dtype)
    for mixed_V, start_V, end_V in _pieces(mixed, start, end):
        start64_V = start_V.to(torch.float64)
        # copy: a float64 model's own tensor must not be written to.
        end64_V = end_V.to(torch.float64, copy=True)
        mixed_V.copy_(end64_V.sub_(start64_V).mul_(alpha).add_(start64_V))
    return mixed


def _pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Views of the same few values of each tensor; only of contiguous ones they can be written."""
    flat = (torch.split(tensor.reshape(-1), _VALUES_AT_ONCE) for tensor in tensors)
    return zip(*flat, strict=True)


def greedy_soup(
    learners: Sequence[OpenWeights],
    evaluate: Evaluate,
    *,
    num_alphas: int,
    on_progress: OnProgress,
    on_ingredient: OnIngredient = lambda _index, _ingredient: None,
) -> Soup:
    """Merge learners one after another, each only if it helps.

    The best learner starts the soup (ties: the lowest index). Each next one is
    tried at alpha = 1/num_alphas, 2/num_alphas, ..., 1, and enters with the alpha of
    the highest accuracy (ties: the smallest) if that is above the soup's.
    alpha = 1 is decided without an evaluation: it is the learner alone, which was
    evaluated and is not above the best one.

    Args:
        learners: each opens one learner's weights; called twice.
        evaluate: the accuracy of weights and the statistics that fit them. Called
            n + (n - 1) (num_alphas - 1) times.
        num_alphas: ratios tried per learner, at least 1.
        on_progress: told after every evaluation.
        on_ingredient: told of every learner once it was offered, in that order.

    Raises:
        RunFailedError: there is no learner.
    """
    score = _counted(evaluate, on_progress, len(learners) + (len(learners) - 1) * (num_alphas - 1))
    accuracies, best = _score_alone(learners, score)
    order = sorted(range(len(learners)), key=lambda index: (-accuracies[index], index))
    weights, soup_accuracy = dict(learners[order[0]]()) | best.mended, best.accuracy
    ingredients = {order[0]: _ingredient(0, best.accuracy, alpha=1.0, soup_accuracy=soup_accuracy)}
    on_ingredient(order[0], ingredients[order[0]])
    for position, index in enumerate(order[1:], start=1):
        weights, soup_accuracy, alpha = _offer(
            weights, soup_accuracy, learners[index], score, num_alphas=num_alphas
        )
        ingredients[index] = _ingredient(
            position, accuracies[index], alpha=alpha, soup_accuracy=soup_accuracy
        )
        on_ingredient(index, ingredients[index])
    return Soup(weights, soup_accuracy, ingredients)


def _offer(
    soup: Weights, soup_accuracy: float, opened: OpenWeights, score: Evaluate, *, num_alphas: int
) -> tuple[Weights, float, float]:
    """The soup after one learner was offered, its accuracy, and the learner's alpha.

    The learner is let go before the next one is read.
    """
    # Read as a whole, once: what is verified is what every mixture is made of.
    learner = dict(opened())
    alpha, mended = 0.0, Weights()
    for tried in (step / num_alphas for step in range(1, num_alphas)):
        scored = score(Mixture(soup, learner, tried))
        if scored.accuracy > soup_accuracy:
            alpha, mended, soup_accuracy = tried, scored.mended, scored.accuracy
    if alpha:
        # Mixed again, in place: each old tensor goes when its mixture has come.
        for name, tensor in Mixture(soup, learner, alpha).items():
            soup[name] = tensor
    return soup | mended, soup_accuracy, alpha


def uniform_soup(
    learners: Sequence[OpenWeights], evaluate: Evaluate, *, on_progress: OnProgress
) -> Soup:
    """The plain mean of all learners, summed in float64.

    Each learner's alpha is its share when it is stirred in, 1/1, 1/2, ..., 1/n, which is
    that mean. All enter at once, so every ingredient has the final accuracy.

    Args:
        learners: each opens one learner's weights; called at most four times.
        evaluate: as for `greedy_soup`. Called n + 1 times.
        on_progress: told after every evaluation.

    Raises:
        RunFailedError: there is no learner.
    """
    score = _counted(evaluate, on_progress, len(learners) + 1)
    accuracies, _ = _score_alone(learners, score)
    weights = _mean(learners)
    scored = score(weights)
    ingredients = {
        index: _ingredient(index, accuracy, alpha=1 / (index + 1), soup_accuracy=scored.accuracy)
        for index, accuracy in enumerate(accuracies)
    }
    return Soup(weights | scored.mended, scored.accuracy, ingredients)


def _score_alone(learners: Sequence[OpenWeights], score: Evaluate) -> tuple[list[float], Scored]:
    """Every learner's accuracy, and the first best one's evaluation."""
    accuracies: list[float] = []
    best: Scored | None = None
    for opened in learners:
        scored = score(opened())
        accuracies.append(scored.accuracy)
        if best is None or scored.accuracy > best.accuracy:
            best = scored
    if best is None:
        raise RunFailedError(
            "0 learners arrived, so there is no soup. Look at the learners' messages, or raise "
            "learners.deadline_seconds."
        )
    return accuracies, best


def _mean(learners: Sequence[OpenWeights]) -> Weights:
    """Floating-point tensors' means; integers are the first learner's."""
    first = learners[0]()
    by_size = sorted(first, key=lambda name: first[name].nbytes)
    # float64 takes twice the room: one half of the weights is summed after the other.
    means = _mean_of(by_size[0::2], learners) | _mean_of(by_size[1::2], learners)
    return {name: means[name] for name in first}


def _mean_of(names: Sequence[str], learners: Sequence[OpenWeights]) -> Weights:
    sums = Weights()
    dtypes: dict[str, torch.dtype] = {}
    for opened in learners:
        weights = opened()
        for name in names:
            if name not in sums:
                sums[name], dtypes[name] = _summand(weights[name])
            elif sums[name].is_floating_point():
                _add(sums[name], weights[name])
        # Closed before the next one is opened.
        del weights
    for name, total in sums.items():
        if total.is_floating_point():
            sums[name] = total.div_(len(learners)).to(dtypes[name])
    return sums


def _summand(tensor: Tensor) -> tuple[Tensor, torch.dtype]:
    if not tensor.is_floating_point():
        return tensor, tensor.dtype
    as64 = tensor.to(torch.float64, copy=True, memory_format=torch.contiguous_format)
    return as64, tensor.dtype


def _add(total: Tensor, tensor: Tensor) -> None:
    for total_V, tensor_V in _pieces(total, tensor):
        total_V.add_(tensor_V)


def _ingredient(
    position: int, accuracy: float, *, alpha: float, soup_accuracy: float
) -> IngredientRecord:
    return IngredientRecord(
        position=position,
        accuracy=accuracy,
        soup_accuracy=soup_accuracy,
        alpha=alpha,
        kept=alpha > 0.0,
    )


def _counted(evaluate: Evaluate, on_progress: OnProgress, total: int) -> Evaluate:
    done = 0

    def score(weights: Mapping[str, Tensor]) -> Scored:
        nonlocal done
        scored = evaluate(weights)
        done += 1
        on_progress(done, total)
        return scored

    return score
