from dataclasses import replace
from typing import Any

import pytest
import torch

from lipt.common.errors import SignalsError
from lipt.core.selection.strategy import VIEWS
from lipt.core.signals.dynamics import Dynamics
from lipt.core.signals.signals import labels_only
from lipt.core.signals.views import (
    Features,
    GradientNorms,
    InitialLosses,
    LastLayer,
    NearDuplicates,
    PairedFeatures,
    TargetWords,
    ValidationSignals,
    View,
    mean_over_models,
)
from tests.core.selection.builders import full_signals, half

SIGNALS = full_signals([0, 1, 2, 0, 1])


@pytest.mark.parametrize("kind", VIEWS)
def test_a_view_shares_the_values_of_the_signals(kind: type[View]) -> None:
    view = kind.of(SIGNALS)
    whole = getattr(SIGNALS, kind.part) if kind.part else SIGNALS
    for name, value in vars(view).items():
        assert value is getattr(whole, name) or value == ()
    assert len(view) == len(whole)


@pytest.mark.parametrize("kind", VIEWS)
def test_rows_of_a_view_are_a_view_of_the_rows(kind: type[View]) -> None:
    rows = torch.tensor([3, 0])
    taken = kind.of(half(SIGNALS)).take(rows)
    for name, value in vars(taken).items():
        if isinstance(value, torch.Tensor):
            of_all = getattr(kind.of(half(SIGNALS)), name)
            # A target stays whole.
            own = of_all if name.startswith("target_") else of_all[rows].to(value.dtype)
            assert torch.equal(value, own)
            assert value.dtype != torch.float16 or name.startswith("target_")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Features, "no features. They were not computed: compute them first, or give your own."),
        (LastLayer, "no errors. They were not computed"),
        (GradientNorms, "no gradient norms. They were not computed"),
        (ValidationSignals, "no errors of validation examples. The run has none: set valid"),
        (Dynamics, "no probabilities of the learners. Only a run with learners has them, on"),
        (PairedFeatures, "no features. Give a safetensors file with the tensors `features` and"),
        (NearDuplicates, "no duplicate group. They were not computed"),
        (InitialLosses, "no losses. They were not computed"),
        (TargetWords, "no words. They were not computed"),
    ],
)
def test_missing_values_are_named_with_the_remedy(kind: type[View], words: str) -> None:
    with pytest.raises(SignalsError, match=f"the signals have {words}"):
        kind.of(labels_only(torch.tensor([0, 1])))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (kind, name)
        for kind in VIEWS
        for name, value in vars(kind.of(SIGNALS)).items()
        if isinstance(value, torch.Tensor) and value.is_floating_point()
    ],
)
def test_values_that_are_not_finite_name_their_examples(kind: type[View], name: str) -> None:
    whole: Any = getattr(SIGNALS, kind.part) if kind.part else SIGNALS
    values = getattr(whole, name).clone()
    values[2] = torch.nan
    spoiled = replace(whole, **{name: values})
    signals = replace(SIGNALS, **{kind.part: spoiled}) if kind.part else spoiled
    with pytest.raises(SignalsError, match=r"not finite for 1 of \d+ examples.*ids 2: "):
        kind.of(signals)


def test_values_of_other_models_and_no_others_have_to_be_finite() -> None:
    spoiled = replace(SIGNALS, errors_NC=SIGNALS.errors_NC / 0)
    with pytest.raises(SignalsError, match="model's errors are not finite for 5 of 5"):
        LastLayer.of(replace(SIGNALS, other_models=(spoiled,)))
    with pytest.raises(SignalsError, match="errors of validation examples are not finite for 5"):
        ValidationSignals.of(replace(SIGNALS, validation=spoiled))
    assert len(Features.of(spoiled)) == 5


def test_a_class_is_validated_on_its_own_examples_or_on_all() -> None:
    held = full_signals([0, 0, 1], num_classes=3)
    view = ValidationSignals.of(replace(SIGNALS, validation=held))
    assert view.of_class(1).labels_N.tolist() == [1]
    assert view.of_class(2) is view


def test_scores_are_means_over_the_models() -> None:
    first, other = labels_only(torch.tensor([0, 1, 1])), labels_only(torch.tensor([0, 1, 1]))
    first = replace(first, gradient_norms_N=torch.tensor([1.0, 2.0, 3.0]))
    other = replace(other, gradient_norms_N=torch.tensor([3.0, 0.0, 4.0]))
    both = GradientNorms.of(replace(first, other_models=(other,)))

    def norms(view: GradientNorms) -> torch.Tensor:
        return view.gradient_norms_N

    assert mean_over_models(both, norms).tolist() == [2.0, 1.0, 3.5]
    assert mean_over_models(both.take(torch.tensor([2, 0])), norms).tolist() == [3.5, 2.0]
    assert mean_over_models(GradientNorms.of(first), norms).tolist() == [1.0, 2.0, 3.0]
