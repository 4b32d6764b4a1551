"""Evidence: what is known of the data and of a proxy's head before `auto` decides.

Leave-one-out outputs of the head give label quality and the noise rate (Northcutt et al. 2021,
arXiv:1911.00068). Near-duplicates are counted. A head is trusted less where the model that is
trained on the chosen examples probably knows better.

Figures are accuracies from docs/results.md and docs/value.md: resnet8 on 50,000 images of
cifar10-jpeg, 1,000 steps of 64 (short) or 6,000 (converged). Differences below two points say
little. The head's error rate there is 35%.

Shapes: N examples, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from lipt.core.diagnosis.label_errors import LabelQuality
from lipt.core.proxies.ridge import fullness
from lipt.core.signals.views import LastLayer

# Main training to the end, or stopped early as in a search of hyper-parameters.
Training = Literal["converged", "short"]

# Up to the first fraction or number per class, `_STRICTEST` times the head's errors are excluded;
# from the second on none; linear in between; the lower of both. Converged, the gain on clean data
# is +11.0 points at 1% (50 per class), +0.2 at 5% and none at 10%. Short, it is +3.3 points at 10%
# (500) and 0 at 30%.
_FROM_FEW_TO_MANY: dict[Training, tuple[float, float]] = {
    "converged": (0.01, 0.1),
    "short": (0.05, 0.2),
}
_FEW_TO_MANY_PER_CLASS: dict[Training, tuple[float, float]] = {
    "converged": (20, 200),
    "short": (250, 1000),
}
# A linear head errs where the data is not linear, and a model trained on many examples does not.
# Exclusions fade between these numbers of chosen examples of a class per feature of the head, times
# the share of the possible that it misses beyond the next figure. Of 100,000 rows with five classes
# that products and waves decide, excluding 30% costs 10 points at 10% (74.6 and 64.9; here 2.4).
_AS_GOOD, _BETTER = 0.5, 1.0
# A head with errors up to this share, in all and in the class, is right where it contradicts a
# label: on digits 70 of 71 suspects were wrong.
RELIABLE_ERROR = 0.1


@dataclass(frozen=True)
class Evidence:
    """The plan's inputs, with the share of examples to keep.

    Means over classes are kept: a plan asks for them once for each class.

    per_class: number of examples to keep of each class, on average.
    num_features: those of the head; infinite for a user's own class probabilities.
    errors_C: share of each class that the head misclassifies, on held-out labels.
    full_C: weight of each class: 1, less if it has few examples, 0 if none.
    noise_rate, noise_low, noise_C: share of wrong labels, its lower bound, and by class.
    copies: share of the examples that are near-duplicates of others.
    """

    fraction: float
    per_class: float
    num_features: float
    errors_C: tuple[float, ...]
    full_C: tuple[float, ...]
    noise_rate: float
    noise_low: float
    noise_C: tuple[float, ...]
    copies: float = 0.0
    training: Training = "converged"

    @cached_property
    def num_classes(self) -> float:
        """The sum of the classes' weights: a mistyped label is no class."""
        return sum(self.full_C)

    def mean(self, values_C: Sequence[float]) -> float:
        """Mean over classes by their weights, of values in [0, 1]."""
        total = sum(full * value for full, value in zip(self.full_C, values_C, strict=True))
        return min(1.0, total / self.num_classes)

    @cached_property
    def accuracy(self) -> float:
        """The head's accuracy, mean over classes."""
        return 1.0 - self.mean(self.errors_C)

    @property
    def head_decides(self) -> bool:
        """Whether few examples are kept, and the head is probably right against a label."""
        return 1.0 - self.accuracy <= RELIABLE_ERROR and self.fewness_per_class > 0

    @property
    def fewness(self) -> float:
        """1 for few examples, of which excluding others gains on clean data, 0 for many."""
        by_fraction = _falling(self.fraction, *_FROM_FEW_TO_MANY[self.training])
        return min(by_fraction, self.fewness_per_class)

    @property
    def fewness_per_class(self) -> float:
        """The same by their number alone."""
        return _falling(self.per_class, *_FEW_TO_MANY_PER_CLASS[self.training])

    @cached_property
    def trust(self) -> float:
        """1 where the head probably knows better than the trained model will, 0 where not."""
        missed = 1.0 - self.skill - RELIABLE_ERROR
        return _falling(missed * self.per_class / self.num_features, _AS_GOOD, _BETTER)

    @cached_property
    def skill(self) -> float:
        """0 for guessing, 1 for the best accuracy that wrong labels leave possible."""
        if self.num_classes <= 1:
            return 0.0
        guessing = 1.0 / self.num_classes
        # An untrained head disagrees with most labels, which looks like noise.
        possible = max(1.0 - self.mean(self.noise_C), (1.0 + guessing) / 2)
        return (self.accuracy - guessing) / (possible - guessing)


def gather(
    layer: LastLayer, quality: LabelQuality, budget: int, training: Training, copies: float = 0.0
) -> Evidence:
    """The evidence from label errors and the share of near-duplicates."""
    labels_N = layer.labels_N
    counts_C = labels_N.bincount(minlength=len(quality.joint_CC))
    wrong_C = labels_N[quality.suggested_N != labels_N].bincount(minlength=len(counts_C))
    full_C, own = fullness(counts_C), "probabilities" in (layer.facts or {})
    return Evidence(
        fraction=budget / len(labels_N),
        per_class=budget / float(full_C.sum()),
        num_features=math.inf if own else layer.features_ND.shape[1],
        errors_C=tuple((wrong_C / counts_C.clamp(min=1)).tolist()),
        full_C=tuple(full_C.tolist()),
        noise_rate=quality.noise.overall.rate,
        noise_low=quality.noise.overall.low,
        noise_C=tuple(rate.rate for rate in quality.noise.per_class),
        copies=copies,
        training=training,
    )


def _falling(number: float, start: float, stop: float) -> float:
    """1 up to the first end, 0 from the second on, linear in between."""
    return min(1.0, max(0.0, (stop - number) / (stop - start)))
