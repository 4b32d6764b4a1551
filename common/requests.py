"""Requests: what a trainer asks of a subset, one value from the call to the choice.

A call's arguments make a `SubsetRequest`. `request_to_proto` and `request_from_proto` are its only
codec. `lipt.core` resolves it once against the data and the run.

A proxy is the model that signals are computed with, as users write it:

    soup                 theta_p, or the request's weights, with its own trained head
    ridge:F+F+...        a ridge head on these features, side by side, in any order
    auto                 the proxy of best value among those available

A feature is `soup` (the inputs of the head of theta_p or of the request's weights, and its last
feature map), `initial` (the same of theta*), `learners` (the same of every learner), `patches`
(whitened random patches of images), `columns` (the values of examples that are no images), `user`
(the request's), `backbone` (those of the operator's network).

A warm-up is the option `pretraining` of strategies that look at a model. It replaces LiPT's own:

    lipt          theta_p, the default
    epochs:N      the run's theta*, warmed up for N epochs; N may be a fraction, or 0
    epochs:NxR    R models from R random initial weights, each for N epochs
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from enum import StrEnum
from typing import Any, Self

from lipt.common.blobs.blob import BlobName, blob_from_proto, blob_to_proto
from lipt.common.errors import BudgetError, InvalidRequestError, ProxyError, StrategyOptionError
from lipt.v1 import subset_pb2 as pb

_RIDGE = "ridge:"


class FeatureKind(StrEnum):
    """Sources of features, cheapest first."""

    USER = "user"
    PATCHES = "patches"
    COLUMNS = "columns"
    SOUP = "soup"
    INITIAL = "initial"
    LEARNERS = "learners"
    BACKBONE = "backbone"


@dataclass(frozen=True)
class Proxy:
    """Features of a ridge head, in `FeatureKind`'s order; None for `auto`, empty for `soup`."""

    features: tuple[FeatureKind, ...] | None

    @classmethod
    def parse(cls, text: str) -> Self:
        """The proxy that a text names."""
        if text == "auto":
            return cls(None)
        if text == "soup":
            return cls(())
        names = text.removeprefix(_RIDGE).split("+")
        unknown = [name for name in names if name not in set(FeatureKind)]
        if not text.startswith(_RIDGE) or unknown or len(set(names)) < len(names):
            raise ProxyError(
                f"there is no proxy {text!r}. Choose soup, auto, or ridge: followed by one or more "
                f"of {', '.join(FeatureKind)}, each once and joined by +: ridge:learners+patches."
            )
        return cls(tuple(kind for kind in FeatureKind if kind in names))

    def __str__(self) -> str:
        if self.features is None:
            return "auto"
        return _RIDGE + "+".join(self.features) if self.features else "soup"

    @property
    def is_own_head(self) -> bool:
        """Whether signals come from a model with its own trained head."""
        return self.features == ()

    @property
    def teacher(self) -> Self:
        """The proxy whose head gives soft labels: itself, or `auto` in place of a model's own."""
        return type(self)(None) if self.is_own_head else self

    def may_use(self, kind: FeatureKind) -> bool:
        """Whether its signals can depend on such features; `auto` takes learners' by name only."""
        return kind != FeatureKind.LEARNERS if self.features is None else kind in self.features


SOUP = Proxy(())

PRETRAINING = "pretraining"
LIPT = "lipt"
PRETRAININGS = (LIPT, "epochs:N", "epochs:NxR")
_EPOCHS = re.compile(r"epochs:([0-9]{1,4}(?:\.[0-9]{1,4})?)(?:x([1-9][0-9]{0,3}))?", re.ASCII)


@dataclass(frozen=True)
class WarmUp:
    """An ordinary warm-up of `models` models, each for `epochs`; `str` is its canonical text."""

    epochs: float
    models: int = 1

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parse a warm-up's text; None for LiPT's own, StrategyOptionError for anything else."""
        if text == LIPT:
            return None
        match = _EPOCHS.fullmatch(text)
        if match is None:
            raise StrategyOptionError(
                f"option {PRETRAINING} cannot be {text!r}. Choose one of: "
                f"{', '.join(PRETRAININGS)} (default {LIPT})."
            )
        return cls(float(match[1]), int(match[2] or 1))

    def __str__(self) -> str:
        epochs = repr(self.epochs).removesuffix(".0")
        return f"epochs:{epochs}" + (f"x{self.models}" if self.models > 1 else "")

    @property
    def counted_epochs(self) -> float:
        """The cost in epochs; an untrained model costs its pass over the data."""
        return max(self.epochs, 1.0) * self.models


@dataclass(frozen=True)
class Budget:
    """How many examples: a share of the data, in (0, 1], or their number; exactly one of them."""

    fraction: float | None = None
    number: int | None = None

    def of(self, num_examples: int) -> int:
        """The number of examples; BudgetError if the data has fewer, or the share keeps none.

        A share is read by its decimal digits, half an example rounded up: 0.145 of 100 is 15.
        """
        fraction, number = self.fraction, self.number
        if (fraction is None) == (number is None):
            raise BudgetError(
                f"fraction {fraction} and budget {number}: exactly one is needed. Give a fraction "
                "in (0, 1] or a budget."
            )
        if number is not None:
            require_budget(number, num_examples)
            return number
        assert fraction is not None  # noqa: S101 - one of them is given
        if not 0.0 < fraction <= 1.0:
            raise BudgetError(
                f"fraction {fraction} is outside (0, 1]. Choose a share, such as 0.1."
            )
        budget = int((Decimal(str(fraction)) * num_examples).to_integral_value(ROUND_HALF_UP))
        if not budget:
            least = f"{0.5 / num_examples:.3g}"
            raise BudgetError(
                f"fraction {fraction} of {num_examples} examples keeps none. Choose at least "
                f"{least}."
            )
        return budget


def require_budget(budget: int, num_examples: int) -> None:
    if not 1 <= budget <= num_examples:
        raise BudgetError(f"budget {budget} is outside 1..{num_examples}. Choose one within.")


class LabelUse(StrEnum):
    """Whether labels may enter the choice."""

    GIVEN = "given"
    NONE = "none"

    @classmethod
    def parse(cls, text: str) -> Self:
        if text and text not in set(cls):
            raise InvalidRequestError(f"labels = {text!r}: choose one of {', '.join(cls)}.")
        return cls(text or cls.GIVEN)


@dataclass(frozen=True, kw_only=True)
class SubsetRequest:
    """A request for a subset, as it is asked; nothing is checked against data or run.

    balanced: equal shares per class, or not; None for the strategy's default.
    options: the strategy's own, as texts. preset: one of the strategy's, for those not given.
    warm_up: trains the model that is looked at, in place of LiPT.
    proxy: computes the signals; None for the strategy's default.
    soft_labels: whether a ridge head's probabilities are added as training targets.
    weights: of the run's model, in place of theta_p.
    features, probabilities: the user's own, in place of the model's and of a head's.
    mixture: a file with the sources' shares, within which the strategy chooses.
    targets: files of examples of what the user cares about.
    previous: digest of the trainer's current subset, or empty.
    """

    budget: Budget
    run: str = ""
    strategy: str = "auto"
    balanced: bool | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    preset: str = ""
    warm_up: WarmUp | None = None
    proxy: Proxy | None = None
    labels: LabelUse = LabelUse.GIVEN
    soft_labels: bool = False
    weights: BlobName | None = None
    features: BlobName | None = None
    probabilities: BlobName | None = None
    mixture: BlobName | None = None
    targets: tuple[BlobName, ...] = ()
    previous: str = ""


def split_warm_up(options: Mapping[str, str]) -> tuple[dict[str, str], WarmUp | None]:
    """The strategy's own options, and the warm-up among them."""
    own = {name: text for name, text in options.items() if name != PRETRAINING}
    return own, WarmUp.parse(options.get(PRETRAINING, LIPT))


def request_to_proto(request: SubsetRequest) -> pb.GetSubsetRequest:
    """The message of a request; it has no field for a user's own probabilities."""
    warm_up = {} if request.warm_up is None else {PRETRAINING: str(request.warm_up)}
    message = pb.GetSubsetRequest(
        run_id=request.run,
        strategy=request.strategy,
        fraction=request.budget.fraction,
        budget=request.budget.number,
        options={**request.options, **warm_up},
        preset=request.preset,
        proxy="" if request.proxy is None else str(request.proxy),
        labels=request.labels.value,
        soft_labels=request.soft_labels,
        previous=request.previous,
        weights=None if request.weights is None else blob_to_proto(request.weights),
        features=None if request.features is None else blob_to_proto(request.features),
        mixture=None if request.mixture is None else blob_to_proto(request.mixture),
        targets=map(blob_to_proto, request.targets),
    )
    if request.balanced is not None:
        message.balanced = request.balanced
    return message


def request_from_proto(message: pb.GetSubsetRequest) -> SubsetRequest:
    """The request of a message; LiptError for a text that is none of its field."""

    def given(name: str) -> Any:
        return getattr(message, name) if message.HasField(name) else None

    options, warm_up = split_warm_up(message.options)
    weights, features, mixture = (given(name) for name in ("weights", "features", "mixture"))
    return SubsetRequest(
        run=message.run_id,
        strategy=message.strategy,
        budget=Budget(given("fraction"), given("budget")),
        balanced=given("balanced"),
        options=options,
        preset=message.preset,
        warm_up=warm_up,
        proxy=Proxy.parse(message.proxy) if message.proxy else None,
        labels=LabelUse.parse(message.labels),
        soft_labels=message.soft_labels,
        weights=weights and blob_from_proto(weights),
        features=features and blob_from_proto(features),
        mixture=mixture and blob_from_proto(mixture),
        targets=tuple(map(blob_from_proto, message.targets)),
        previous=message.previous,
    )
