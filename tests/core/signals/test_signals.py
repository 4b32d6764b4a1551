from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lipt.common.errors import SignalsError
from lipt.core.signals.dynamics import Dynamics
from lipt.core.signals.signals import (
    Signals,
    given,
    labels_only,
    moved,
    num_bytes,
    probabilities_of,
)


@pytest.mark.parametrize("bias", [True, False])
def test_a_saved_file_is_read_back_exactly(tmp_path: Path, *, bias: bool) -> None:
    signals = Signals(
        errors_NC=torch.randn(5, 3),
        features_ND=torch.randn(5, 2),
        labels_N=torch.tensor([0, 1, 2, 0, 1]),
        gradient_norms_N=torch.rand(5),
        has_bias=bias,
    )
    signals.save(tmp_path / "signals")
    loaded = Signals.load(tmp_path / "signals")
    assert loaded.has_bias == bias
    assert torch.equal(loaded.errors_NC, signals.errors_NC)
    assert torch.equal(loaded.features_ND, signals.features_ND)
    assert torch.equal(loaded.labels_N, signals.labels_N)
    assert loaded.gradient_norms_N is not None
    assert signals.gradient_norms_N is not None
    assert torch.equal(loaded.gradient_norms_N, signals.gradient_norms_N)
    assert [path.name for path in tmp_path.iterdir()] == ["signals"]


def test_taken_rows_are_those_of_every_value_in_the_order_given() -> None:
    dynamics = Dynamics(
        probabilities_NLT=torch.rand(5, 2, 3),
        margins_NLT=torch.randn(5, 2, 3),
        error_norms_NL=torch.rand(5, 2),
        disagreement_N=torch.rand(5),
        own_learner_N=torch.tensor([-1, 0, 1, -1, 0], dtype=torch.int16),
    )
    signals = Signals(
        errors_NC=torch.randn(5, 3).half(),
        features_ND=torch.randn(5, 2),
        labels_N=torch.arange(5),
        gradient_norms_N=torch.rand(5),
        has_bias=False,
        dynamics=dynamics,
        paired_features_NP=torch.randn(5, 4),
        validation=labels_only(torch.zeros(7, dtype=torch.int64)),
    )
    rows = torch.tensor([3, 0])
    taken = signals.take(rows)
    assert taken.errors_NC.dtype == torch.float32
    assert torch.equal(taken.errors_NC, signals.errors_NC[rows].float())
    for name in ("features_ND", "labels_N", "gradient_norms_N", "paired_features_NP"):
        assert torch.equal(getattr(taken, name), getattr(signals, name)[rows]), name
    assert torch.equal(taken.learners().margins_NLT, dynamics.margins_NLT[rows])
    assert taken.validation is signals.validation
    assert not taken.has_bias


def test_probabilities_are_errors_plus_one_at_the_label() -> None:
    errors_NC = torch.tensor([[-0.75, 0.5, 0.25], [0.5, 0.25, -0.75]])
    labels_N = torch.tensor([0, 2])
    expected = [[0.25, 0.5, 0.25], [0.5, 0.25, 0.25]]
    assert probabilities_of(errors_NC, labels_N).tolist() == expected
    double_11NC = probabilities_of(errors_NC[None, None], labels_N[None, None], torch.float64)
    assert double_11NC.tolist() == [[expected]]
    assert double_11NC.dtype == torch.float64
    # What was given is as it was.
    assert errors_NC[0, 0] == -0.75


def test_what_is_missing_is_said() -> None:
    signals = labels_only(torch.tensor([0]))
    with pytest.raises(SignalsError, match="the signals have no dynamics of the learners: compute"):
        signals.learners()
    with pytest.raises(SignalsError, match="the signals have no norms: compute them first"):
        given(signals.gradient_norms_N, "norms")
    assert given(signals.labels_N, "labels") is signals.labels_N


def test_other_models_signals_are_taken_along_and_count_in_a_mean() -> None:
    first, other = labels_only(torch.tensor([0, 1, 1])), labels_only(torch.tensor([0, 1, 1]))
    first = replace(first, gradient_norms_N=torch.tensor([1.0, 2.0, 3.0]))
    other = replace(other, gradient_norms_N=torch.tensor([3.0, 0.0, 4.0]))
    both = replace(first, others=(other,))

    def norms(signals: Signals) -> torch.Tensor:
        return given(signals.gradient_norms_N, "gradient norms")

    assert both.mean_over_models(norms).tolist() == [2.0, 1.0, 3.5]
    assert both.of_class(1).mean_over_models(norms).tolist() == [1.0, 3.5]
    assert both.take(torch.tensor([2, 0])).mean_over_models(norms).tolist() == [3.5, 2.0]
    assert first.mean_over_models(norms).tolist() == [1.0, 2.0, 3.0]


META = torch.device("meta")


def make_signals(*, validation: bool = False) -> Signals:
    return Signals(
        errors_NC=torch.zeros(4, 3, dtype=torch.float16),
        features_ND=torch.zeros(4, 2),
        labels_N=torch.zeros(4, dtype=torch.int64),
        dynamics=Dynamics(
            probabilities_NLT=torch.zeros(4, 1, 1),
            margins_NLT=torch.zeros(4, 1, 1),
            error_norms_NL=torch.zeros(4, 1),
            disagreement_N=torch.zeros(4),
            own_learner_N=torch.zeros(4, dtype=torch.int16),
        ),
        has_bias=False,
        validation=make_signals() if validation else None,
    )


def test_every_tensor_counts() -> None:
    # 4 rows of 3 halves, 2 floats, a label, and 4 floats and an int16 of dynamics.
    one = 4 * (3 * 2 + 2 * 4 + 8 + 4 * 4 + 2)
    assert num_bytes(make_signals()) == one
    assert num_bytes(make_signals(validation=True)) == 2 * one


def test_everything_moves_and_nothing_else_changes() -> None:
    signals = moved(make_signals(validation=True), META)
    assert signals.errors_NC.device == signals.labels_N.device == META
    assert signals.errors_NC.dtype == torch.float16
    assert signals.dynamics is not None
    assert signals.dynamics.margins_NLT.device == META
    assert signals.validation is not None
    assert signals.validation.features_ND.device == META
    assert signals.gradient_norms_N is None
    assert not signals.has_bias
