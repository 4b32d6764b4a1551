from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lipt.common.errors import SignalsError
from lipt.core.signals.signals import (
    Signals,
    given,
    labels_only,
    moved,
    num_bytes,
    probabilities_of,
)
from tests.core.selection.builders import full_signals, half


@pytest.mark.parametrize("bias", [True, False])
def test_a_saved_file_is_read_back_exactly(tmp_path: Path, *, bias: bool) -> None:
    signals = replace(full_signals([0, 1, 2, 0, 1]), has_bias=bias)
    signals.save(tmp_path / "signals")
    loaded = Signals.load(tmp_path / "signals")
    assert loaded.has_bias == bias
    for name in ("errors_NC", "features_ND", "labels_N", "gradient_norms_N"):
        assert torch.equal(getattr(loaded, name), getattr(signals, name)), name
    assert [path.name for path in tmp_path.iterdir()] == ["signals"]


def test_taken_rows_are_those_of_every_value_in_the_order_given() -> None:
    signals = replace(half(full_signals([0, 1, 2, 0, 1])), has_bias=False)
    rows = torch.tensor([3, 0])
    taken = signals.take(rows)
    assert taken.errors_NC.dtype == taken.features_ND.dtype == torch.float32
    assert torch.equal(taken.errors_NC, signals.errors_NC[rows].float())
    for name in ("labels_N", "gradient_norms_N", "pictures_N"):
        assert torch.equal(getattr(taken, name), getattr(signals, name)[rows]), name
    assert torch.equal(taken.learners().margins_NLT, signals.learners().margins_NLT[rows])
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


def test_every_tensor_counts_and_moves() -> None:
    signals = full_signals([0, 1, 2])
    # A row of 3 errors, 6 features and as many of a pair, a norm, a label and a picture; of
    # 3 learners 12 probabilities and margins, 3 norms, a disagreement, and whose shard it is in.
    row_bytes = 4 * (3 + 6 + 6 + 1) + 8 + 8 + 4 * (12 + 12 + 3 + 1) + 2
    alone = replace(signals, validation=None)
    assert num_bytes(alone) == 3 * row_bytes
    assert num_bytes(signals) == (3 + 30) * row_bytes
    meta = torch.device("meta")
    there = moved(signals, meta)
    assert there.errors_NC.device == there.learners().margins_NLT.device == meta
    assert given(there.validation, "validation").features_ND.device == meta
    assert there.second_errors_NC is None
    assert there.has_bias
