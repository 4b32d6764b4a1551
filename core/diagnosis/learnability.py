"""Learnability: how well the classes are told apart from how many examples.

Leave-one-out accuracy of a ridge head on class-stratified samples, each half of the next, and
on all: a learning curve without a validation split. Worth asking for is the least of these
sizes from which a doubling gains less than a point. Where even the last doubling gained more,
that is everything, and what the next one would gain is told by how fast gains have shrunk.

It is the head's curve and not a network's, which has more to learn: the fraction is where
fixed features have seen enough, and less than a network can use.

Shapes: N examples, D features, n examples of a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lipt.core.proxies.ridge import HeadTargets
from lipt.core.proxies.ridge import leave_one_out

_MOST_HALVINGS = 5
# Of a sample; below that accuracies are too rough to compare.
_FEWEST = 100
# Larger samples than that take longer than they tell: the curve has the size of all beside it.
_LARGEST_SAMPLE = 12_500
WORTH_POINTS = 1.0


@dataclass(frozen=True)
class Learnability:
    """A learning curve and what it says.

    sizes: examples, ascending; the last is all.
    accuracies: leave-one-out, of each.
    suggested_fraction: in (0, 1].
    why: in words.
    """

    sizes: tuple[int, ...]
    accuracies: tuple[float, ...]
    suggested_fraction: float
    why: str


def learning_curve(
    features_ND: Tensor,
    labels_N: Tensor,
    num_classes: int,
    accuracy: float,
    *,
    wanted: HeadTargets | None = None,
    generator: torch.Generator,
    on_progress: Callable[[int, int], None] = lambda *_: None,
) -> Learnability:
    """Measure the head on ever larger samples."""
    order_N = stratified_order(labels_N, generator)
    sizes = sample_sizes(len(labels_N))
    accuracies = []
    for done, size in enumerate(sizes):
        ids_n = order_N[:size].sort().values
        head = leave_one_out(
            features_ND[ids_n],
            labels_N[ids_n],
            num_classes,
            generator=generator,
            wanted=None if wanted is None else wanted.take(ids_n),
        )
        accuracies.append(max(0.0, head.accuracy))
        on_progress(done + 1, len(sizes))
    return judge((*sizes, len(labels_N)), (*accuracies, max(0.0, accuracy)))


def sample_sizes(num_examples: int) -> list[int]:
    """N halved again and again, ascending, without N itself."""
    halves = [num_examples >> halvings for halvings in range(1, _MOST_HALVINGS + 1)]
    return sorted(size for size in halves if _FEWEST <= size <= _LARGEST_SAMPLE)


def stratified_order(labels_N: Tensor, generator: torch.Generator) -> Tensor:
    """The ids such that the first n have every class in its share, for any n, at random."""
    num_examples = len(labels_N)
    shuffled_N = torch.randperm(num_examples, generator=generator)
    by_class_N = shuffled_N[labels_N[shuffled_N].argsort(stable=True)]
    counts_C = labels_N.bincount()
    starts_C = counts_C.cumsum(0) - counts_C
    own_N = labels_N[by_class_N]
    ranks_N = torch.arange(num_examples) - starts_C[own_N]
    # The k-th of a class stands where a share k / count of all are before it.
    places_N = (ranks_N.double() + 0.5) / counts_C[own_N]
    return by_class_N[places_N.argsort(stable=True)]


def judge(
    sizes: Sequence[int], accuracies: Sequence[float], *, worth_points: float = WORTH_POINTS
) -> Learnability:
    """Say which size is worth asking for."""

    def judged(fraction: float, why: str) -> Learnability:
        return Learnability(tuple(sizes), tuple(accuracies), fraction, why)

    if len(sizes) < 2:
        return judged(1.0, f"{sizes[-1]} examples are too few to draw samples of.")
    points = "point" if worth_points == 1 else "points"
    gains = []
    for place in range(1, len(sizes)):
        doublings = torch.tensor(sizes[place] / sizes[place - 1]).log2().item()
        gains.append(100 * (accuracies[place] - accuracies[place - 1]) / doublings)
    for place in range(len(gains)):
        if max(gains[place:]) < worth_points:
            return judged(
                sizes[place] / sizes[-1],
                f"from {sizes[place]} examples on a doubling gains less than {worth_points:g} "
                f"{points} of leave-one-out accuracy (at most {max(gains[place:]):.1f}).",
            )
    shrinks = gains[-1] / gains[-2] if len(gains) > 1 and gains[-2] > 0 else 1.0
    following = max(0.0, gains[-1] * min(1.0, shrinks))
    return judged(
        1.0,
        f"the last doubling, to all {sizes[-1]} examples, still gained {gains[-1]:.1f} points of "
        f"leave-one-out accuracy; twice as many examples would gain about {following:.1f} more.",
    )
