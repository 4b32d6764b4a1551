"""Targets of a model (one class, several labels, numbers, next tokens) and a data set's values.

The residual, output minus truth, is the gradient of an example's loss by a model's T outputs. The
last layer's gradient is therefore the outer product of residual and feature.

Examples without a single class are grouped in strata, for splits and balanced quotas: numbers by
the quantile of the first, labels by each example's rarest label, texts by their length.

Shapes: N examples, B of a batch, T outputs, C classes or labels, Q edges, L positions, V tokens.
"""

from __future__ import annotations

import itertools
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from lipt.common.errors import ConfigError, DataError
from lipt.common.text import encodable
from lipt.data.inputs.standardization import MOST_DEVIATIONS, fences, stored
from lipt.data.targets.kinds import TargetKind

logger = logging.getLogger(__name__)

_NUM_BINS = 10
_NO_LABEL = "none"
_LONGEST_NAME = 1000
# Score of non-finite outputs: R² has no lower bound.
_LOWEST_SCORE = -1.0
_MAX_OUTPUTS = 100_000
_MOST_TOKENS, _LONGEST_TEXT = 2**20, 2**16

Numbers = Annotated[tuple[float, ...], Field(min_length=1, max_length=_MAX_OUTPUTS)]


class Target(ABC):
    """A kind of target, a frozen value.

    A batch's targets are on the outputs' device: int64 B for classes, else B x T: uint8 of 0 and 1,
    or floats in the data's own units.
    """

    kind: TargetKind

    @property
    @abstractmethod
    def num_outputs(self) -> int:
        """T, the width of a model's last layer."""

    @abstractmethod
    def losses(self, outputs_BT: Tensor, targets_B: Tensor) -> Tensor:
        """Each example's own loss, B float32."""

    def mean_loss(self, outputs_BT: Tensor, targets_B: Tensor) -> Tensor:
        return self.losses(outputs_BT, targets_B).mean()

    @abstractmethod
    def residuals(self, outputs_BT: Tensor, targets_B: Tensor) -> Tensor:
        """Gradients of each example's own loss by its outputs; B x T float32, by float64."""

    @abstractmethod
    def merits(self, outputs_BT: Tensor, targets_B: Tensor) -> Tensor:
        """Each example's share of a score, at most 1; B float32. Only for training progress."""

    def tally(self) -> Tally:
        return Tally(self)

    @abstractmethod
    def counts(self, outputs_BT: Tensor, targets_B: Tensor) -> Tensor:
        """A batch's part of a score, on the outputs' device."""

    @abstractmethod
    def score_of(self, counts: Sequence[Tensor]) -> float:
        """The score of at least one batch; larger is better, at most 1."""

    @abstractmethod
    def chance(self, targets_N: Tensor) -> float:
        """The score of the best constant answer to at least one example."""


class Tally:
    """A score's counts over batches; independent of batch sizes."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._counts: list[Tensor] = []

    def add(self, outputs_BT: Tensor, targets_B: Tensor) -> None:
        """Count a batch; both on one device."""
        # Not read yet: that would synchronize the device.
        self._counts.append(self._target.counts(outputs_BT, targets_B))

    def score(self) -> float:
        return self._target.score_of(self._counts)

    def best_possible(self, num_left: int) -> float:
        """The largest possible score after `num_left` more examples."""
        if not isinstance(self._target, SingleLabel):
            return 1.0
        left = self._counts[0].new_tensor([num_left, num_left])
        return self._target.score_of([*self._counts, left])


@dataclass(frozen=True)
class SingleLabel(Target):
    """One class of `num_classes`; targets are int64 B, and the score is accuracy."""

    num_classes: Annotated[int, Field(ge=1)]
    kind: Literal[TargetKind.CLASS] = TargetKind.CLASS

    @property
    def num_outputs(self) -> int:
        return self.num_classes

    def losses(self, outputs_BT: Tensor, targets_B: Tensor) -> Tensor:
        return functional.cross_entropy(outputs_BT.float(), targets_B, reduction="none")

    def mean_loss(self, outputs_BT: Tensor, targets_B: Tensor) -> Tensor:
        return functional.cross_entropy(outputs_BT.float(), targets_B)

    def residuals(self, outputs_BT: Tensor, targets_B: Tensor) -> Tensor:
        residuals_BC = outputs_BT.to(torch.float64).softmax(dim=-1)
        residuals_BC -= functional.one_hot(targets_B, outputs_BT.shape[-1])
        return residuals_BC.to(torch.float32)

    def merits(self, outputs_BT: Tensor, targets_B: Tensor) -> Tensor:
        return (outputs_BT.argmax(dim=-1) == targets_B).float()

    def counts(self, outputs_BT: Tensor, targets_B: Tensor) -> Tensor:
        """Number of correct examples, and of all; non-finite outputs are wrong."""
        right_B = outputs_BT.argmax(dim=-1) == targets_B
        right_B = right_B & outputs_BT.isfinite().all(dim=-1)
        return torch.stack([right_B.sum(), torch.ones_like(right_B).sum()])

    def score_of(self, counts: Sequence[Tensor]) -> float:
        right, seen = torch.stack(list(counts)).sum(dim=0).tolist()
        return float(right / seen)

    def chance(self, targets_N: Tensor) -> float:
        """The share of the largest class."""
        return int(targets_N.bincount().max()) / len(targets_N)

    def __str__(self) -> str:
        return f"{self.num_classes} classes"


@dataclass(frozen=True)
class MultiLabel(Target):
    """Any of `num_labels`; targets are uint8 B x C, 1 for each label of the example.

    The loss is the sum of the labels' binary cross-entropies. The score is the micro F1, 2 TP / (2
    TP + FP + FN) at threshold 1/2, over all labels of all examples; 1 without any positive.
    """

    num_labels: Annotated[int, Field(ge=1)]
    kind: Literal[TargetKind.CLASSES] = TargetKind.CLASSES

    @property
    def num_outputs(self) -> int:
        return self.num_labels

    def losses(self, outputs_BT: Tensor, targets_B: Tensor) -> Tensor:
        return functional.binary_cross_entropy_with_logits(
            outputs_BT.float(), targets_B.float(), reduction="none"
        ).sum(dim=-1)

    def residuals(self, outputs_BT: Tensor, targets_B: Tensor) -> Tensor:
        return (outputs_BT.to(torch.float64).sigmoid() - targets_B).to(torch.float32)

    def merits(self, outputs_BT: Tensor, targets_B: Tensor) -> Tensor:
        return ((outputs_BT > 0) == (targets_B > 0)).float().mean(dim=-1)

    def counts(self, outputs_BT: Tensor, targets_B: Tensor) -> Tensor:
        """True positives and wrong answers; non-finite outputs are wrong."""
        has_BC, finite_BC, said_BC = targets_B > 0, outputs_BT.isfinite(), outputs_BT > 0
        found_BC, wrong_BC = said_BC & has_BC & finite_BC, (said_BC != has_BC) | ~finite_BC
        return torch.stack([found_BC.sum(), wrong_BC.sum()])

    def score_of(self, counts: Sequence[Tensor]) -> float:
        right, wrong = torch.stack(list(counts)).sum(dim=0).tolist()
        return float(2 * right / (2 * right + wrong)) if right or wrong else 1.0

    def chance(self, targets_N: Tensor) -> float:
        """The micro F1 of always answering the k most frequent labels, for the best k."""
        counts_C = targets_N.long().sum(dim=0).sort(descending=True).values
        answered_C = len(targets_N) * torch.arange(1, len(counts_C) + 1)
        return float((2 * counts_C.cumsum(0) / (answered_C + counts_C.sum())).max())

    def __str__(self) -> str:
        return f"{self.num_labels} labels"


@dataclass(frozen=True)
class Regression(Target):
    """Numbers; targets are floats B x T in the data's own units.

    Models predict them standardized by the data set's mean and population deviation. The loss is
    half the squared error in these units, summed over the numbers. In it numbers are cut at 10
    deviations: the square of a mistyped one would hide all others. The score is R² of the numbers
    as they are, averaged over them; always predicting the mean scores 0. A constant number scores 1
    if predicted exactly, else 0.
    """

    mean: Numbers
    std: Numbers
    kind: Literal[TargetKind.NUMBER] = TargetKind.NUMBER

    def __post_init__(self) -> None:
        finite = all(map(math.isfinite, (*self.mean, *self.std)))
        positive = all(deviation > 0 for deviation in self.std)
        if not len(self.mean) == len(self.std) or not finite or not positive:
            raise ConfigError(
                f"targets cannot be standardized by the means {list(self.mean)} and the deviations "
                f"{list(self.std)}. Give a finite mean and a positive deviation for each number."
            )

    @property
    def num_outputs(self) -> int:
        return len(self.mean)

    def standardized(self, targets_BT: Tensor) -> Tensor:
        """Convert numbers to the model's standardized units; float64."""
        mean_T, std_T = (
            torch.tensor(figures, dtype=torch.float64, device=targets_BT.device)
            for figures in (self.mean, self.std)
        )
        return (targets_BT.to(torch.float64) - mean_T) / std_T

    def learned(self, targets_BT: Tensor) -> Tensor:
        """Standardized numbers as the loss takes them, cut at 10 deviations; float64."""
        return self.standardized(targets_BT).clamp(-MOST_DEVIATIONS, MOST_DEVIATIONS)

    def losses(self, outputs_BT: Tensor, targets_B: Tensor) -> Tensor:
        wanted_BT = self.learned(targets_B).float()
        return (outputs_BT.float() - wanted_BT).square().sum(dim=-1) / 2

    def residuals(self, outputs_BT: Tensor, targets_B: Tensor) -> Tensor:
        return (outputs_BT.to(torch.float64) - self.learned(targets_B)).to(torch.float32)

    def merits(self, outputs_BT: Tensor, targets_B: Tensor) -> Tensor:
        off_BT = outputs_BT.to(torch.float64) - self.learned(targets_B)
        return (1 - off_BT.square().mean(dim=-1)).float()

    def counts(self, outputs_BT: Tensor, targets_B: Tensor) -> Tensor:
        """Squared errors and standardized truth, 2 x B x T float64."""
        wanted_BT = self.standardized(targets_B)
        return torch.stack([(outputs_BT.to(torch.float64) - wanted_BT).square(), wanted_BT]).cpu()

    def score_of(self, counts: Sequence[Tensor]) -> float:
        # Exact sums do not depend on order or batches.
        squares_TN, wanted_TN = torch.cat(list(counts), dim=1).transpose(1, 2)
        if not bool(squares_TN.isfinite().all()):
            return _LOWEST_SCORE
        scores: list[float] = []
        for squares, numbers in zip(squares_TN.tolist(), wanted_TN.tolist(), strict=True):
            mean, left = math.fsum(numbers) / len(numbers), math.fsum(squares)
            total = math.fsum((number - mean) ** 2 for number in numbers)
            scores.append(1 - left / total if total else float(left == 0))
        return max(_LOWEST_SCORE, math.fsum(scores) / len(scores))

    def chance(self, targets_N: Tensor) -> float:  # noqa: ARG002 - as in `Target`
        return 0.0

    def __str__(self) -> str:
        return "a number" if self.num_outputs == 1 else f"{self.num_outputs} numbers"


# The target of a position that no loss counts.
MASKED = -1


@dataclass(frozen=True)
class NextTokens(Target):
    """The next token at each position; targets are int64 B x L, MASKED where none counts.

    Outputs are B x L x V logits. The loss is an example's mean over the positions that count, of
    which each example has one at least. The score is the share of their tokens that are right.
    """

    num_tokens: Annotated[int, Field(ge=2, le=_MOST_TOKENS)]
    length: Annotated[int, Field(ge=1, le=_LONGEST_TEXT)]
    kind: Literal[TargetKind.TOKENS] = TargetKind.TOKENS

    @property
    def num_outputs(self) -> int:
        return self.num_tokens

    def losses(self, outputs_BT: Tensor, targets_B: Tensor) -> Tensor:
        wanted_BL = self._aligned(outputs_BT, targets_B)
        losses_BL = functional.cross_entropy(
            outputs_BT.float().transpose(1, 2), wanted_BL, ignore_index=MASKED, reduction="none"
        )
        return losses_BL.sum(dim=1) / (wanted_BL != MASKED).sum(dim=1)

    def residuals(self, outputs_BT: Tensor, targets_B: Tensor) -> Tensor:
        """The gradient has a row for each position, which no signal stores."""
        raise ConfigError(
            f"signals of {outputs_BT.shape[1]} tokens of {len(targets_B)} texts are not available. "
            "Name the label of the texts, or choose a mixture of sources: lipt.mix."
        )

    def merits(self, outputs_BT: Tensor, targets_B: Tensor) -> Tensor:
        right_BL, counts_BL = self._right(outputs_BT, targets_B)
        return right_BL.sum(dim=1) / counts_BL.sum(dim=1)

    def counts(self, outputs_BT: Tensor, targets_B: Tensor) -> Tensor:
        """Number of correct tokens, and of all that count; non-finite outputs are wrong."""
        right_BL, counts_BL = self._right(outputs_BT, targets_B)
        right_BL = right_BL & outputs_BT.isfinite().all(dim=-1)
        return torch.stack([right_BL.sum(), counts_BL.sum()])

    def score_of(self, counts: Sequence[Tensor]) -> float:
        right, seen = torch.stack(list(counts)).sum(dim=0).tolist()
        return float(right / seen)

    def chance(self, targets_N: Tensor) -> float:
        """The share of the most frequent token."""
        counts_V = targets_N[targets_N != MASKED].bincount()
        return int(counts_V.max()) / int(counts_V.sum())

    def _right(self, outputs_BLV: Tensor, targets_BL: Tensor) -> tuple[Tensor, Tensor]:
        wanted_BL = self._aligned(outputs_BLV, targets_BL)
        return outputs_BLV.argmax(dim=-1) == wanted_BL, wanted_BL != MASKED

    def _aligned(self, outputs_BLV: Tensor, targets_BL: Tensor) -> Tensor:
        if outputs_BLV.shape[:-1] != targets_BL.shape:
            raise ConfigError(
                f"the model's outputs have the shape {tuple(outputs_BLV.shape)}, and the next "
                f"tokens {tuple(targets_BL.shape)}. Choose a causal model, such as text:causal, or "
                "name the label of the texts."
            )
        return targets_BL.long()

    def __str__(self) -> str:
        return f"the next of {self.num_tokens} tokens"


# Any target except a single class.
OtherTarget = Annotated[MultiLabel | Regression | NextTokens, Field(discriminator="kind")]


@dataclass(frozen=True)
class TargetValues:
    """A data set's target values and their int64 strata.

    Values are labels (uint8 N x C), numbers (N x T, as `stored`) or tokens (int64 N x L).
    """

    target: OtherTarget
    values: Tensor
    names: tuple[str, ...]
    strata_N: Tensor
    strata_names: tuple[str, ...]


def readable_names(names: Sequence[str], source: str) -> tuple[str, ...]:
    """Names of classes, labels or numbers, with escapes for what is not UTF-8."""
    longest = max(names, key=len, default="")
    if len(longest) > _LONGEST_NAME:
        raise DataError(
            f"{source}: the name {longest!r:.60} has {len(longest)} characters; at most "
            f"{_LONGEST_NAME} are taken. Name the class in a few words."
        )
    return tuple(map(encodable, names))


def label_values(values_NC: Tensor, names: Sequence[str] | None, source: str) -> TargetValues:
    """Labels of N examples, 0 and 1 of any real type; without names they are numbered."""
    num_labels = _require_matrix(values_NC, names, source, "labels")
    bad_NC = (values_NC != 0) & (values_NC != 1)
    if bool(bad_NC.any()):
        row, label = bad_NC.nonzero()[0].tolist()
        raise DataError(
            f"{source}: row {row} has {values_NC[row, label].item()} for label {label}, which is "
            "neither 0 nor 1. Give 1 for every label of an example, else 0; floats for regression."
        )
    labels = readable_names(names or tuple(map(str, range(num_labels))), source)
    values = values_NC.to("cpu", torch.uint8).contiguous()
    strata_N = rarest_label_strata(values)
    return TargetValues(MultiLabel(num_labels), values, labels, strata_N, (*labels, _NO_LABEL))


def number_values(values_NT: Tensor, names: Sequence[str] | None, source: str) -> TargetValues:
    """Numbers of N examples, of any real type; without names they are numbered."""
    num_outputs = _require_matrix(values_NT, names, source, "numbers")
    given_NT = values_NT.to("cpu", torch.float64).contiguous()
    bad_N = ~given_NT.isfinite().all(dim=1)
    if bool(bad_N.any()):
        row = int(bad_N.nonzero()[0])
        raise DataError(
            f"{source}: the target of row {row} is {values_NT[row].tolist()}, {int(bad_N.sum())} "
            "of all are not finite. Correct or remove these rows."
        )
    numbers = readable_names(names or tuple(map(str, range(num_outputs))), source)
    values = stored(given_NT)
    means, deviations = zip(*map(_mean_and_deviation, values.T), strict=True)
    for name, deviation in zip(numbers, deviations, strict=True):
        if not deviation:
            raise DataError(
                f"{source}: the target {name} is the same number for all {len(values)} examples. "
                "Leave it out."
            )
    strata = quantile_strata(values[:, 0], "" if names is None else numbers[0])
    target = Regression(means, deviations)
    is_far_N = (target.standardized(values).abs() > MOST_DEVIATIONS).any(dim=1)
    if bool(is_far_N.any()):
        logger.warning(
            "%s: %d of %d targets are more than %d deviations from the mean, and are learned as "
            "that far. Correct wrong ones, or predict the logarithm",
            *(source, int(is_far_N.sum()), len(values), MOST_DEVIATIONS),
        )
    return TargetValues(target, values, numbers, *strata)


def token_values(wanted_NL: Tensor, num_tokens: int) -> TargetValues:
    """Next tokens of N texts, each with one at least that counts."""
    half = -(-wanted_NL.shape[1] // 2)
    strata_N = ((wanted_NL != MASKED).sum(dim=1) > half).long()
    names = (f"up to {half} tokens", f"above {half} tokens")
    return TargetValues(NextTokens(num_tokens, wanted_NL.shape[1]), wanted_NL, (), strata_N, names)


def _require_matrix(values: Tensor, names: Sequence[str] | None, source: str, what: str) -> int:
    columns = values.shape[1] if values.ndim == 2 else 0
    if not len(values) or not columns or (names is not None and len(names) != columns):
        named = "" if names is None else f" with {len(names)} names"
        raise DataError(
            f"{source}: the targets are {what} of the shape {tuple(values.shape)}{named}. Give a "
            "matrix, one row per example and one column per name."
        )
    return columns


def _mean_and_deviation(column_N: Tensor) -> tuple[float, float]:
    """Population mean and deviation by exact sums, the same in any order and on any machine.

    Numbers beyond the outer fences count as these, as those of inputs do.
    """
    given_N1 = column_N.double().numpy()[:, None]
    given_N1 = given_N1.clip(*fences(given_N1))
    # A power of two, so that squares and sums are finite and no bit changes.
    _, exponent = math.frexp(float(np.abs(given_N1).max()))
    numbers = np.ldexp(given_N1[:, 0], -exponent).tolist()
    mean = math.fsum(numbers) / len(numbers)
    variance = math.fsum((number - mean) ** 2 for number in numbers) / len(numbers)
    deviation = 0.0 if min(numbers) == max(numbers) else math.sqrt(variance)
    return math.ldexp(mean, exponent), math.ldexp(deviation, exponent)


def quantile_strata(values_N: Tensor, what: str = "") -> tuple[Tensor, tuple[str, ...]]:
    """Each example's bin, N int64, and the bins' names: `up to 60`, `60 to 80`, `above 80`.

    At least two values must differ. Equal values share the lower bin, so no bin is empty; many
    equal values give fewer bins.
    """
    values_N = values_N.to(torch.float64)
    sorted_N = values_N.sort().values
    # The largest value of each bin but the last.
    ends_Q = -(-torch.arange(1, _NUM_BINS) * len(sorted_N) // _NUM_BINS)
    edges_Q = torch.unique(sorted_N[(ends_Q - 1).clamp(min=0)])
    edges_Q = edges_Q[edges_Q < sorted_N[-1]]
    if not len(edges_Q):
        # Nearly all values are the largest: the others form one bin.
        edges_Q = sorted_N[sorted_N < sorted_N[-1]][-1:]
    # As many digits as tell the edges apart.
    texts = next(
        texts
        for digits in range(5, 18)
        if len(set(texts := [f"{edge:.{digits}g}" for edge in edges_Q.tolist()])) == len(edges_Q)
    )
    between = (f"{low} to {high}" for low, high in itertools.pairwise(texts))
    names = (f"up to {texts[0]}", *between, f"above {texts[-1]}")
    named = tuple(f"{what} {name}".strip() for name in names)
    return torch.searchsorted(edges_Q, values_N), named


def rarest_label_strata(targets_NC: Tensor) -> Tensor:
    """Each example's rarest label, the first of ties, or C without any label; N int64."""
    has_NC = targets_NC > 0
    counts_C = has_NC.sum(dim=0)
    # Labels that the example lacks get a count above all others.
    rarity_NC = torch.where(has_NC, counts_C, len(targets_NC) + 1)
    strata_N = rarity_NC.argmin(dim=1)
    return strata_N.where(has_NC.any(dim=1), targets_NC.shape[1])
