"""Soup: learners that never talked to each other, merged into theta_p.

Greedy interpolation (Ro et al. 2023, section 3.4): learners are tried in
decreasing validation accuracy, as in Wortsman et al. 2022, "Model soups"
(arXiv:2203.05482); each is mixed into the soup at the ratio alpha that helps
most, or discarded. The uniform soup of Appendix C merges all of them alike.

This file decides and interpolates, it runs no model: `evaluate` does. All mixtures of a
learner are given to it together. They are made tensor by tensor, straight into the model
that evaluates them, so that however many learners there are, the weights of two models are
in memory, the soup and the ingredient, and those of each model that evaluates, with a
tensor in the making.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from lipt.common.config.run_config import SoupSearch
from lipt.common.errors import RunFailedError
from lipt.common.weights.specs import Weights
from lipt.core.evaluation import Scored
from lipt.core.results import Ingredient

# Opens weights: they are on disk, or mixed as they are read. Each access makes a tensor.
OpenWeights = Callable[[], Mapping[str, Tensor]]
# Scores of several weights, in their order. Each is opened when its turn comes, asked for each
# tensor once, and let go. What cannot be above the floor may be given up: it scores -infinity.
Evaluate = Callable[[Sequence[OpenWeights], float], Iterable[Scored]]
# Evaluations done, and how many there will be.
OnProgress = Callable[[int, int], None]
# A learner that was offered, by its place in the sequence, and what became of it.
OnIngredient = Callable[[int, Ingredient], None]
# Values that are mixed at a time: float64 copies of so many stay in a CPU's cache, and
# PyTorch would share more of them among threads, which then wait for each other every time.
_VALUES_AT_ONCE = 2**15


@dataclass(frozen=True)
class Soup:
    """theta_p, its accuracy, and its ingredients by learner, in the order they were offered in."""

    weights: Weights
    accuracy: float
    ingredients: dict[int, Ingredient]


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
    search: SoupSearch = SoupSearch.GRID,
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
        evaluate: the accuracy of weights and the statistics that fit them. Asked for
            n + (n - 1) (num_alphas - 1) of them.
        num_alphas: ratios tried per learner, at least 1.
        on_progress: told after every evaluation, and of those that a learner did not need.
        search: which of the ratios are tried; all of them, or `coarse_to_fine`.
        on_ingredient: told of every learner once it was offered, in that order.

    Raises:
        RunFailedError: there is no learner.
    """
    ratios = Ratios(num_alphas, search)
    counted = _Counted(len(learners) + (len(learners) - 1) * ratios.most, on_progress)
    evaluate = counted.each(evaluate)
    accuracies, best = _score_alone(learners, evaluate)
    order = sorted(range(len(learners)), key=lambda index: (-accuracies[index], index))
    weights, soup_accuracy = dict(learners[order[0]]()) | best.mended, best.accuracy
    ingredients = {order[0]: _ingredient(0, best.accuracy, alpha=1.0, soup_accuracy=soup_accuracy)}
    on_ingredient(order[0], ingredients[order[0]])
    for position, index in enumerate(order[1:], start=1):
        weights, soup_accuracy, alpha = _offer(
            weights, soup_accuracy, learners[index], evaluate, ratios
        )
        counted.up_to(len(learners) + position * ratios.most)
        ingredients[index] = _ingredient(
            position, accuracies[index], alpha=alpha, soup_accuracy=soup_accuracy
        )
        on_ingredient(index, ingredients[index])
    return Soup(weights, soup_accuracy, ingredients)


def _offer(
    soup: Weights,
    soup_accuracy: float,
    opened: OpenWeights,
    evaluate: Evaluate,
    ratios: Ratios,
) -> tuple[Weights, float, float]:
    """The soup after one learner was offered, its accuracy, and the learner's alpha.

    The learner is let go before the next one is read.
    """
    # Read as a whole, once: what is verified is what every mixture is made of.
    learner = dict(opened())
    best, mended = 0, Weights()
    for stage in ratios.stages():
        tried = stage(best)
        mixed = [partial(Mixture, soup, learner, number / ratios.num_alphas) for number in tried]
        for number, scored in zip(tried, evaluate(mixed, soup_accuracy), strict=True):
            if scored.accuracy > soup_accuracy:
                best, mended, soup_accuracy = number, scored.mended, scored.accuracy
    alpha = best / ratios.num_alphas
    if best:
        # Mixed again, in place: each old tensor goes when its mixture has come.
        for name, tensor in Mixture(soup, learner, alpha).items():
            soup[name] = tensor
    return soup | mended, soup_accuracy, alpha


@dataclass(frozen=True)
class Ratios:
    """The mixing ratios that are tried, as whole numbers of 1/num_alphas.

    alpha = 1 is not among them: the learner alone was evaluated before.
    """

    num_alphas: int
    search: SoupSearch

    @property
    def most(self) -> int:
        """How many may be tried for a learner."""
        if self.search is SoupSearch.GRID:
            return self.num_alphas - 1
        coarse = self._coarse()
        return len(coarse) + max((len(self._around(found)) for found in coarse), default=0)

    def stages(self) -> tuple[Callable[[int], Sequence[int]], ...]:
        """What is tried, one stage after another; each is told which ratio is best so far.

        That is 0 where none was above the soup: then a coarse search has nothing to refine.
        """
        if self.search is SoupSearch.GRID:
            return (lambda _best: range(1, self.num_alphas),)
        return (lambda _best: self._coarse(), self._around)

    @property
    def _stride(self) -> int:
        return max(1, round(math.sqrt(self.num_alphas)))

    def _coarse(self) -> Sequence[int]:
        return range(self._stride // 2 + self._stride % 2, self.num_alphas, self._stride)

    def _around(self, best: int) -> Sequence[int]:
        if not best:
            return ()
        reach = self._stride // 2
        near = range(max(1, best - reach), min(self.num_alphas, best + reach + 1))
        return [tried for tried in near if tried not in self._coarse()]


def uniform_soup(
    learners: Sequence[OpenWeights], evaluate: Evaluate, *, on_progress: OnProgress
) -> Soup:
    """The plain mean of all learners, summed in float64.

    Each learner's alpha is its share when it is stirred in, 1/1, 1/2, ..., 1/n, which is
    that mean. All enter at once, so every ingredient has the final accuracy.

    Args:
        learners: each opens one learner's weights; called at most four times.
        evaluate: as for `greedy_soup`. Asked for n + 1 of them.
        on_progress: told after every evaluation.

    Raises:
        RunFailedError: there is no learner.
    """
    evaluate = _Counted(len(learners) + 1, on_progress).each(evaluate)
    accuracies, _ = _score_alone(learners, evaluate)
    weights = _mean(learners)
    [scored] = evaluate([lambda: weights], -math.inf)
    ingredients = {
        index: _ingredient(index, accuracy, alpha=1 / (index + 1), soup_accuracy=scored.accuracy)
        for index, accuracy in enumerate(accuracies)
    }
    return Soup(weights | scored.mended, scored.accuracy, ingredients)


def _score_alone(learners: Sequence[OpenWeights], evaluate: Evaluate) -> tuple[list[float], Scored]:
    """Every learner's accuracy, and the first best one's evaluation."""
    accuracies: list[float] = []
    best: Scored | None = None
    for scored in evaluate(learners, -math.inf):
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
) -> Ingredient:
    return Ingredient(
        position=position,
        accuracy=accuracy,
        soup_accuracy=soup_accuracy,
        alpha=alpha,
        kept=alpha > 0.0,
    )


class _Counted:
    """Tells how many evaluations are done, of at most so many."""

    def __init__(self, total: int, on_progress: OnProgress) -> None:
        self._done, self._total, self._on_progress = 0, total, on_progress

    def each(self, evaluate: Evaluate) -> Evaluate:
        """The same function, each result of which counts."""

        def counted(weights: Sequence[OpenWeights], floor: float) -> Iterator[Scored]:
            for scored in evaluate(weights, floor):
                self.up_to(self._done + 1)
                yield scored

        return counted

    def up_to(self, done: int) -> None:
        """So many are done, or not needed any more."""
        if done > self._done:
            self._done = done
            self._on_progress(done, self._total)
