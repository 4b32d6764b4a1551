"""How the learners came to see every example: the training dynamics of LiPT.

Strategies that watch training (forgetting, AUM, DUAL) were made for tens of epochs of
it. Here n learners have each been trained for K steps anyway, and what they look like
on the way gives the same statistics.

Shapes: N examples, L learners, T snapshots of each learner, K chosen rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from torch import Tensor

from lipt.coordinator.signals.stored import load_tensors, save_tensors


@dataclass(frozen=True)
class Dynamics:
    """What L learners at T moments think of N examples.

    The snapshots of a learner are in the order of training: the first is theta*, which
    all learners share, the last is the learner that was committed.

    probabilities_NLT: of the example's own label, float32.
    margins_NLT: the logit of the own label minus the largest other one, float32. Positive
        means that the example is classified correctly.
    error_norms_NL: |softmax - onehot| under the committed learners, float32.
    disagreement_N: the variance of the softmax among the committed learners, summed over
        the classes, float32.
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
