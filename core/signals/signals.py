"""Signals: the values of each example on which every strategy selects.

The error e_i is the gradient of the loss by the outputs: softmax - onehot, sigmoid - labels, or
output - number. The last layer's gradient is its outer product with the feature and a one for the
bias, [h_i, 1]. Inner products are (e_i . e_j)(h_i . h_j + 1) and norms |e_i| sqrt(|h_i|^2 + 1),
exactly: N x (C + d) numbers in place of N x C (d + 1).

Shapes: N examples, C classes (labels, or numbers), D features, P of a pair's second half, K chosen
rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from lipt.common.errors import SignalsError
from lipt.common.targets.kinds import TargetKind
from lipt.common.weights.files import KeptValue
from lipt.core.signals.dynamics import Dynamics

ValueT = TypeVar("ValueT")


@dataclass(frozen=True)
class Signals(KeptValue):
    """Signals of N examples; row i of every tensor is the same example.

    errors_NC: N x 0 if unused. float32, or float16 if all together would be too large.
    features_ND: inputs of the last layer, likewise.
    labels_N: int64; zeros if no label may be used; strata for other targets than classes.
    gradient_norms_N: of all parameters.
    has_bias: whether the last layer has a bias: the 1 in [h_i, 1].
    paired_features_NP: the second half of each pair (a caption's features, say), float32.
    pictures_N: int64, the same for near-duplicates.
    second_errors_NC: of a second head, on confident labels, if others are surely wrong.
    confidence_N: weights of the labels in the second head's fit, float64 in (0, 1].
    validation: of the run's validation examples; they stay whole in `take`.
    others: the same examples' signals by other models, for scores that are means over models.
    prepared_N: by a strategy's own preparation, of all examples.
    facts: of the proxy that computed them, for a manifest, as JSON.
    scored_by: credentials whose workers computed some, and what was verified, likewise.
    """

    errors_NC: Tensor
    features_ND: Tensor
    labels_N: Tensor
    gradient_norms_N: Tensor | None = None
    has_bias: bool = True
    dynamics: Dynamics | None = None
    paired_features_NP: Tensor | None = None
    pictures_N: Tensor | None = None
    second_errors_NC: Tensor | None = None
    confidence_N: Tensor | None = None
    validation: Signals | None = None
    others: tuple[Signals, ...] = ()
    prepared_N: Tensor | None = None
    kind: TargetKind = TargetKind.CLASS
    facts: Mapping[str, Any] | None = None
    scored_by: Mapping[str, Any] | None = None

    def __len__(self) -> int:
        return len(self.labels_N)

    def take(self, positions_K: Tensor) -> Self:
        """The signals of some of the examples, in the order given; halves become float32."""
        taken = dict(vars(self))
        for name, value in taken.items():
            if isinstance(value, Tensor):
                rows = value[positions_K]
                taken[name] = rows.float() if rows.dtype == torch.float16 else rows
        if self.dynamics is not None:
            taken["dynamics"] = self.dynamics.take(positions_K)
        taken["others"] = tuple(other.take(positions_K) for other in self.others)
        return type(self)(**taken)

    def mean_over_models(self, score: Callable[[Signals], Tensor]) -> Tensor:
        """The mean of a score over this model and the others; N."""
        scores_N = score(self)
        for other in self.others:
            scores_N = scores_N + score(other)
        return scores_N / (1 + len(self.others)) if self.others else scores_N

    def learners(self) -> Dynamics:
        return required(self.dynamics, "dynamics of the learners")

    def of_class(self, label: int) -> Self:
        """The signals of one class, validated on its own validation examples."""
        taken = self.take(torch.nonzero(self.labels_N == label).flatten())
        if self.validation is None or not bool((self.validation.labels_N == label).any()):
            return taken
        return replace(taken, validation=self.validation.of_class(label))


def probabilities_of(errors: Tensor, labels: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The softmax, at the precision of its errors: error + onehot, of any examples."""
    own = labels[..., None]
    return errors.to(dtype, copy=True).scatter_add_(-1, own, torch.ones_like(own, dtype=dtype))


def required(values: ValueT | None, what: str) -> ValueT:
    """Values that a strategy requires."""
    if values is None:
        raise SignalsError(f"the signals have no {what}: compute them first, or give them.")
    return values


def labels_only(labels_N: Tensor, kind: TargetKind = TargetKind.CLASS) -> Signals:
    empty = torch.empty(len(labels_N), 0)
    return Signals(errors_NC=empty, features_ND=empty, labels_N=labels_N, kind=kind)


def unlabelled(num_examples: int) -> Signals:
    return labels_only(torch.zeros(num_examples, dtype=torch.int64))


# Strategies use the rest.
_SHARE_OF_FREE_MEMORY = 0.5


def moved_if_it_fits(signals: Signals, device: torch.device) -> Signals:
    """The signals on the device if they fit, else unchanged."""
    if device.type != "cuda":
        return signals
    free_bytes, _ = torch.cuda.mem_get_info(device)
    fits = num_bytes(signals) <= free_bytes * _SHARE_OF_FREE_MEMORY
    return moved(signals, device) if fits else signals


def num_bytes(signals: Signals) -> int:
    """Bytes of all tensors, including the validation split's and the learners'."""
    sizes: list[int] = []

    def count(tensor: Tensor) -> Tensor:
        sizes.append(tensor.nbytes)
        return tensor

    _mapped(signals, count)
    return sum(sizes)


def moved(signals: Signals, device: torch.device) -> Signals:
    placed: Signals = _mapped(signals, lambda tensor: tensor.to(device))
    return placed


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple):
        return tuple(_mapped(part, change) for part in value)
    if isinstance(value, (Signals, Dynamics)):
        parts = {name: _mapped(part, change) for name, part in vars(value).items()}
        return replace(value, **parts)
    return value
