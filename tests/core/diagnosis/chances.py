from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from lipt.core.signals.signals import Signals


def signals_of(chances_NC: Tensor, labels_N: Tensor) -> Signals:
    """Signals with these chances, and no features."""
    errors_NC = chances_NC.float() - functional.one_hot(labels_N, chances_NC.shape[1])
    return Signals(errors_NC, torch.empty(len(labels_N), 0), labels_N)


def drawn_chances(
    truth_N: Tensor, num_classes: int, *, right: float, generator: torch.Generator
) -> Tensor:
    """Chances of a head that is right so often, and the surer the more often it is."""
    num_examples = len(truth_N)
    sureness_N = torch.rand(num_examples, generator=generator)
    # Right with certainty at the surest, so that the mean is `right`.
    wrong_N = torch.rand(num_examples, generator=generator) < 2 * (1 - right) * (1 - sureness_N)
    other_N = torch.randint(1, num_classes, (num_examples,), generator=generator)
    said_N = torch.where(wrong_N, (truth_N + other_N) % num_classes, truth_N)
    rest_N = (0.6 - 0.5 * sureness_N) / (num_classes - 1)
    chances_NC = rest_N[:, None].repeat(1, num_classes)
    return chances_NC.scatter_(1, said_N[:, None], (0.4 + 0.5 * sureness_N)[:, None])
