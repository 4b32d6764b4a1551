"""Dynamics: how the learners came to see every example, and statistics over their states.

Strategies that watch training (forgetting, AUM, DUAL) were made for tens of epochs of
it. Here n learners have each been trained for K steps anyway, and what they look like
on the way gives the same statistics. All learners share theta*: counted once per learner it
would weigh L times as much as any other state, so it is counted once.

A learner that was trained on an example is sure of its label even where that is wrong, so
statistics leave it out: only theta* and the other learners have a say on an example. A
learner beside which there is no other keeps its say: theta* alone has no course, and its
margins are no measure beside those of states that were trained.

Every sum is taken one state after the other, so that it is the same for equal examples
wherever they stand and however many there are: ties stay ties. Equal examples of which a
learner was trained on one, and not on the other, are judged by different learners.

Shapes: N examples, L learners, T moments of each (theta* first), K chosen rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from lipt.core.signals.stored import load_tensors, save_tensors


@dataclass(frozen=True)
class Dynamics:
    """What L learners at T moments think of N examples.

    The moments of a learner are in the order of training: the first is theta*, which all
    learners share, the last is the learner as it ended: before it was pruned where the run
    took snapshots, else pruned, as it was committed.

    probabilities_NLT: of the example's own label, float32.
    margins_NLT: the logit of the own label minus the largest other one, float32. Positive
        means that the example is classified correctly.
    error_norms_NL: |softmax - onehot| under the learners at their last moment, float32.
    disagreement_N: the unbiased variance of the softmax among the learners that have a say,
        at their last moment, summed over the classes, float32. A variance takes two: where
        there are no two others, the learner that was trained on the example is one of them.
    own_learner_N: which of the learners, from 0, was trained on the example; -1 where none
        was, or it is not known. int16.
    """

    probabilities_NLT: Tensor
    margins_NLT: Tensor
    error_norms_NL: Tensor
    disagreement_N: Tensor
    own_learner_N: Tensor

    @property
    def counted_NL(self) -> Tensor:
        """Which learners have a say on which examples; bool."""
        return counted_learners(self.own_learner_N, self.error_norms_NL.shape[1])

    def __len__(self) -> int:
        return len(self.disagreement_N)

    def take(self, positions_K: Tensor) -> Dynamics:
        """The dynamics of some of the examples, in the order given."""
        return Dynamics(**{name: values[positions_K] for name, values in vars(self).items()})

    def save(self, path: Path) -> None:
        """Write a safetensors file; readers see all of it or nothing."""
        save_tensors(path, vars(self))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Map what `save` wrote into memory."""
        return load_tensors(path, "training dynamics", lambda tensors, _: cls(**tensors))


def counted_learners(own_learner_N: Tensor, num_learners: int, *, num_needed: int = 1) -> Tensor:
    """Which learners have a say on which examples: all but the one trained on it; N x L, bool."""
    learners_L = torch.arange(num_learners, device=own_learner_N.device)
    if num_learners <= num_needed:
        return learners_L.new_ones(len(own_learner_N), num_learners, dtype=torch.bool)
    return own_learner_N[:, None] != learners_L


def mean_over_moments(values_NLT: Tensor, counted_NL: Tensor) -> Tensor:
    """The mean over theta*, once, and the other states of the learners that count; N, float64."""
    return _mean(_moments(values_NLT, counted_NL))


def deviation_over_moments(values_NLT: Tensor, counted_NL: Tensor, means_N: Tensor) -> Tensor:
    """The population standard deviation around their `mean_over_moments`; N, float64."""
    moments = _moments(values_NLT, counted_NL)
    return _mean(
        ((values_N - means_N).square(), counted_N) for values_N, counted_N in moments
    ).sqrt()


def mean_over_learners(values_NL: Tensor, counted_NL: Tensor) -> Tensor:
    """The mean over the learners that count, at least one for each example; N, float64."""
    columns = zip(values_NL.unbind(dim=1), counted_NL.unbind(dim=1), strict=True)
    return _mean((values_N.double(), counted_N) for values_N, counted_N in columns)


def _moments(values_NLT: Tensor, counted_NL: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    _, num_learners, num_moments = values_NLT.shape
    yield values_NLT[:, 0, 0].double(), torch.ones_like(counted_NL[:, 0])
    for learner in range(num_learners):
        for moment in range(1, num_moments):
            yield values_NLT[:, learner, moment].double(), counted_NL[:, learner]


def _mean(parts: Iterator[tuple[Tensor, Tensor]]) -> Tensor:
    values_N, counted_N = next(parts)
    total_N, number_N = values_N.where(counted_N, 0), counted_N.long()
    for values_N, counted_N in parts:
        total_N += values_N.where(counted_N, 0)
        number_N += counted_N
    return total_N / number_N
