"""Dynamics: how the learners came to see every example, and statistics over their states.

Strategies that watch training (forgetting, AUM, DUAL) were made for tens of epochs of
it. Here n learners have each been trained for K steps anyway, and what they look like
on the way gives the same statistics. All learners share theta*: counted once per learner it
would weigh L times as much as any other state, so it is counted once.

Every sum is taken one state after the other, so that it is the same for equal examples
wherever they stand and however many there are: ties stay ties.

Shapes: N examples, L learners, T moments of each (theta* first), K chosen rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from torch import Tensor

from lipt.coordinator.signals.stored import load_tensors, save_tensors


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
    disagreement_N: the variance of the softmax among the learners at their last moment,
        summed over the classes, float32.
    """

    probabilities_NLT: Tensor
    margins_NLT: Tensor
    error_norms_NL: Tensor
    disagreement_N: Tensor

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
        """Map what `save` wrote into memory.

        Raises:
            StateError: the file cannot be read, or is not one of `save`.
        """
        return load_tensors(path, "training dynamics", lambda tensors, _: cls(**tensors))


def moments(values_NLT: Tensor) -> Iterator[Tensor]:
    """Every state's values, N in float64: theta* once, then learner after learner."""
    _, num_learners, num_moments = values_NLT.shape
    yield values_NLT[:, 0, 0].double()
    for learner in range(num_learners):
        for moment in range(1, num_moments):
            yield values_NLT[:, learner, moment].double()


def mean_over_moments(values_NLT: Tensor) -> Tensor:
    """The mean over the 1 + L (T - 1) states; N, float64."""
    return _mean(moments(values_NLT))


def deviation_over_moments(values_NLT: Tensor, means_N: Tensor) -> Tensor:
    """The population standard deviation around their `mean_over_moments`; N, float64."""
    return _mean((values_N - means_N).square() for values_N in moments(values_NLT)).sqrt()


def mean_over_learners(values_NL: Tensor) -> Tensor:
    """The mean over the learners; N, float64."""
    return _mean(values_N.double() for values_N in values_NL.unbind(dim=1))


def _mean(parts: Iterator[Tensor]) -> Tensor:
    total_N = next(parts).clone()
    count = 1
    for values_N in parts:
        total_N += values_N
        count += 1
    return total_N / count
