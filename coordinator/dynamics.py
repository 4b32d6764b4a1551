"""How the learners came to see every example: the training dynamics of LiPT.

Strategies that watch training (forgetting, AUM, DUAL) were made for tens of epochs of
it. Here n learners have each been trained for K steps anyway, and what they look like
on the way gives the same statistics.

Shapes: N examples, L learners, T snapshots of each learner, K chosen rows.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from lipt.common.errors import StateError


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
        return Dynamics(
            probabilities_NLT=self.probabilities_NLT[positions_K],
            margins_NLT=self.margins_NLT[positions_K],
            error_norms_NL=self.error_norms_NL[positions_K],
            disagreement_N=self.disagreement_N[positions_K],
        )

    def save(self, path: Path) -> None:
        """Write a safetensors file; readers see all of it or nothing."""
        partial = path.with_name(f"{path.name}.part")
        save_file({name: getattr(self, name).contiguous() for name in _names()}, partial)
        partial.replace(path)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote.

        Raises:
            StateError: the file cannot be read, or is not one of `save`.
        """
        try:
            with safe_open(path, framework="pt") as file:
                return cls(**{name: file.get_tensor(name) for name in _names()})
        except (OSError, SafetensorError) as error:
            raise StateError(
                f"{path} does not hold training dynamics ({error}). Delete it: they are computed "
                "again."
            ) from error


def _names() -> tuple[str, ...]:
    return tuple(field.name for field in fields(Dynamics))
