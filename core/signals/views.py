"""Views: the parts of the signals that strategies name as the types of their parameters.

A view has the names of `Signals`' fields. To add one, write its class with the `Need` by which the
stages compute it, and list it in `VIEWS` of lipt.core.selection.strategy.

Shapes: N examples, n of them, M of a target, C classes (labels, or numbers), D features, W words, P
of a pair's second half, or parts of a target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor

from lipt.common.errors import SignalsError
from lipt.core.passes import require_finite_rows, row_blocks
from lipt.data.targets.kinds import TargetKind


class Need(StrEnum):
    """Inputs that the stages compute for views, besides the labels.

    SIGNALS: errors and features, one forward pass over the data. FEATURES: the user's or the
    model's. GRADIENT_NORMS: of all parameters, one backward pass per example. VALIDATION: signals
    of the run's validation split. DYNAMICS: a forward pass for every snapshot of every learner.
    PAIRED_FEATURES: two feature matrices of the user. DUPLICATES: near-duplicate images. LOSSES,
    PROMPTS: under theta*, a forward pass each. TARGET_...: of what the user cares about.
    """

    SIGNALS = "signals"
    FEATURES = "features"
    GRADIENT_NORMS = "gradient norms"
    VALIDATION = "validation split"
    DYNAMICS = "learners"
    PAIRED_FEATURES = "paired features"
    DUPLICATES = "near-duplicates"
    LOSSES = "losses"
    PROMPTS = "losses without prompts"
    TARGET_LOSSES = "losses after a target"
    TARGET_FEATURES = "features of a target"
    TARGET_WORDS = "words of a target"


# Inputs that need a model.
MODEL_NEEDS = frozenset({Need.SIGNALS, Need.FEATURES, Need.VALIDATION, Need.GRADIENT_NORMS})
# Inputs that need a target, and those that need theta* alone.
TARGET_NEEDS = frozenset({Need.TARGET_LOSSES, Need.TARGET_FEATURES, Need.TARGET_WORDS})
INITIAL_NEEDS = TARGET_NEEDS | {Need.LOSSES, Need.PROMPTS}
# Words need no model.
THETA_NEEDS = INITIAL_NEEDS - {Need.TARGET_WORDS}


@dataclass(frozen=True)
class View:
    """Values of N examples: row i of every tensor is the same example, the first field has N rows.

    need: what is computed for it. part: the field of the signals whose values it has, or all.
    whole: fields of a target, which stay as they are in `take`. words: of a field in an error.
    remedy: for missing values.
    """

    need: ClassVar[Need | None] = None
    part: ClassVar[str] = ""
    whole: ClassVar[frozenset[str]] = frozenset()
    words: ClassVar[str] = "{}"
    remedy: ClassVar[str] = "They were not computed: compute them first, or give your own."

    @classmethod
    def of(cls, signals: View) -> Self:
        """The view of some signals; SignalsError if values are missing or not finite."""
        return cls._of(getattr(signals, cls.part) if cls.part else signals)

    @classmethod
    def _of(cls, signals: Any) -> Self:
        values = {}
        for field in fields(cls):
            value = getattr(signals, field.name, None)
            words = cls.words.format(field.name.rpartition("_")[0].replace("_", " "))
            if isinstance(value, Tensor) and value.numel():
                _require_finite(value, words)
            elif field.default is MISSING:
                raise SignalsError(f"the signals have no {words}. {cls.remedy}")
            values[field.name] = tuple(map(cls._of, value)) if isinstance(value, tuple) else value
        return cls(**values)

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))

    def take(self, positions_n: Tensor) -> Self:
        """The values of some of the examples, in the order given; halves become float32."""
        taken = {
            name: value if name in self.whole else _taken(value, positions_n)
            for name, value in vars(self).items()
        }
        return type(self)(**taken)


def _taken(value: Any, positions_n: Tensor) -> Any:
    if isinstance(value, Tensor):
        rows = value[positions_n]
        return rows.float() if rows.dtype == torch.float16 else rows
    return tuple(other.take(positions_n) for other in value) if isinstance(value, tuple) else value


def _require_finite(values: Tensor, words: str) -> None:
    if not values.is_floating_point():
        return
    row_bytes = values[0].numel() * values.element_size()
    blocks = list(row_blocks(len(values), row_bytes))
    # A sum is not finite if one of its terms is not: usually no further check is needed.
    sums = [
        values[rows].sum(dtype=torch.promote_types(values.dtype, torch.float32)) for rows in blocks
    ]
    if bool(torch.stack(sums).isfinite().all()):
        return
    finite_N = torch.cat(
        [values[rows].reshape(rows.stop - rows.start, -1).isfinite().all(dim=-1) for rows in blocks]
    )
    require_finite_rows(finite_N, torch.arange(len(values)), words)


@dataclass(frozen=True)
class ExampleLabels(View):
    """The examples' labels alone, or zeros if no label may be used."""

    labels_N: Tensor


@dataclass(frozen=True)
class Features(View):
    """Features of the model, or of the user, and the labels."""

    need = Need.FEATURES

    features_ND: Tensor
    labels_N: Tensor


@dataclass(frozen=True)
class LastLayer(View):
    """Errors and inputs of a model's last layer: its gradients' factors.

    errors_NC: N x 0 if unused. float32, or float16 if all together would be too large.
    features_ND: inputs of the last layer, likewise.
    labels_N: int64; zeros if no label may be used; strata for other targets than classes.
    has_bias: whether the last layer has a bias: the 1 in [h_i, 1].
    second_errors_NC: of a second head, on confident labels, if others move the first.
    other_models: the same examples' values by other models, for scores that are means over models.
    facts: of the proxy that computed them, for a manifest, as JSON.
    """

    need = Need.SIGNALS

    errors_NC: Tensor
    features_ND: Tensor
    labels_N: Tensor
    has_bias: bool = True
    kind: TargetKind = TargetKind.CLASS
    second_errors_NC: Tensor | None = None
    other_models: tuple[LastLayer, ...] = ()
    facts: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class ValidationSignals(LastLayer):
    """The last layer on the run's validation examples; of a class without any it is on all."""

    need = Need.VALIDATION
    part = "validation"
    words = "{} of validation examples"
    remedy = "The run has none: set validation.fraction above 0."

    def of_class(self, label: int) -> Self:
        own_n = torch.nonzero(self.labels_N == label).flatten()
        return self.take(own_n) if len(own_n) else self


@dataclass(frozen=True)
class GradientNorms(View):
    """Norms of the loss's gradient by all parameters, by this model and by others."""

    need = Need.GRADIENT_NORMS

    gradient_norms_N: Tensor
    other_models: tuple[GradientNorms, ...] = ()


@dataclass(frozen=True)
class PairedFeatures(View):
    """Features of both halves of each pair, of an image and its caption, say, and the labels."""

    need = Need.PAIRED_FEATURES
    remedy = (
        "Give a safetensors file with the tensors `features` and `paired_features`, a row per "
        "example: `lipt subset get --features FILE.safetensors`, or client.subset(features=...)."
    )

    features_ND: Tensor
    paired_features_NP: Tensor
    labels_N: Tensor


@dataclass(frozen=True)
class NearDuplicates(View):
    """Groups of near-duplicates, int64: the same number for the members of one group."""

    need = Need.DUPLICATES

    duplicate_group_N: Tensor


@dataclass(frozen=True)
class InitialLosses(View):
    """Each example's loss under theta*, float32."""

    need = Need.LOSSES
    part = "targeted"

    losses_N: Tensor


@dataclass(frozen=True)
class UnpromptedLosses(View):
    """Losses of completions without their prompts, under theta*."""

    need = Need.PROMPTS
    part = "targeted"
    words = "{} losses"

    unprompted_N: Tensor


@dataclass(frozen=True)
class TargetLosses(View):
    """Losses after a short learner on each of a target's P parts.

    in_target_N: whether the example duplicates one of the target's.
    """

    need = Need.TARGET_LOSSES
    part = "targeted"
    words = "losses {} a target"

    after_NP: Tensor
    in_target_N: Tensor | None = None


@dataclass(frozen=True)
class TargetFeatures(View):
    """Features under theta* of the examples, and of a target's M; of texts, means of states."""

    need = Need.TARGET_FEATURES
    part = "targeted"

    whole = frozenset({"target_features_MD"})

    features_ND: Tensor
    target_features_MD: Tensor
    in_target_N: Tensor | None = None


@dataclass(frozen=True)
class TargetWords(View):
    """Numbers of the words of the examples, and of a target's M; -1 after a text's last."""

    need = Need.TARGET_WORDS
    part = "targeted"

    whole = frozenset({"target_words_MW"})

    words_NW: Tensor
    target_words_MW: Tensor
    in_target_N: Tensor | None = None


ModelT = TypeVar("ModelT", LastLayer, GradientNorms)


def mean_over_models(view: ModelT, score: Callable[[ModelT], Tensor]) -> Tensor:
    """The mean of a score over the view's model and the others; N."""
    scores_N = score(view)
    for other in view.other_models:
        scores_N = scores_N + score(other)
    return scores_N / (1 + len(view.other_models)) if view.other_models else scores_N
