from __future__ import annotations

from dataclasses import replace

import torch

from lipt.core.signals.device import fits, moved, num_bytes, place
from lipt.core.signals.dynamics import Dynamics
from lipt.core.signals.signals import Signals, labels_only

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


def test_half_of_the_free_memory_is_left_to_the_strategy() -> None:
    signals = make_signals()
    assert fits(signals, 2 * num_bytes(signals))
    assert not fits(signals, 2 * num_bytes(signals) - 1)


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


def test_a_cpu_has_them_already() -> None:
    signals = make_signals()
    assert place(signals, torch.device("cpu")) is signals


def test_other_models_signals_are_counted_and_moved() -> None:
    one = labels_only(torch.tensor([0, 1]))
    both = replace(one, others=(one, one))
    assert num_bytes(both) == 3 * num_bytes(one)
    placed = moved(both, torch.device("meta"))
    assert [other.labels_N.device.type for other in placed.others] == ["meta", "meta"]
