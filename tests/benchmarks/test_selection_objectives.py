from dataclasses import replace

import pytest
import torch

from benchmarks.selection import objectives
from benchmarks.selection.workload import Shape, make_signals, materialized
from lipt.core.signals.signals import Signals

pytestmark = pytest.mark.slow


def on_a_line(*errors: float) -> Signals:
    """Without features a gradient is the error: distances are sqrt(2) |a - b|."""
    column = torch.tensor(errors)
    return Signals(
        errors_NC=torch.stack([-column, column], dim=1),
        features_ND=torch.zeros(len(errors), 1),
        labels_N=torch.zeros(len(errors), dtype=torch.int64),
    )


def test_gradmatch_and_glister_by_hand() -> None:
    signals = on_a_line(1.0, 3.0, 5.0)
    one = torch.tensor([7.0])
    assert objectives.gradmatch(signals, torch.tensor([2]), one) == pytest.approx(0.0)
    signals = replace(signals, features_ND=torch.tensor([[1.0], [0.0], [0.0]]))
    # Column of the class: bias entries 1, 3, 5, weight entries 1, 0, 0; the mean is (3, 1/3).
    # Of that, (0, 1) alone leaves 1/3 out.
    expected = (1 / 3) / (9 + 1 / 9) ** 0.5
    assert objectives.gradmatch(signals, torch.tensor([1]), one) == pytest.approx(expected)
    signals = on_a_line(0.5, 0.5, 0.25)
    held = on_a_line(0.5)
    signals = replace(signals, validation=held)
    # Logits start equal; a step of 1 on the mean error (-0.5, 0.5) makes them differ by 1.
    expected = float(torch.log1p(torch.exp(torch.tensor(-1.0))))
    for chosen in ([0], [0, 1]):
        found = objectives.glister(signals, torch.tensor(chosen), 1.0)
        assert found == pytest.approx(expected, rel=1e-5)


def test_objectives_agree_with_gradients_written_out() -> None:
    signals = make_signals(Shape(60, 3, 4), "test", 60)
    rows = materialized(signals).double()
    chosen = torch.arange(0, 60, 7)
    total = 0.0
    for label in range(3):
        mine = torch.nonzero(signals.labels_N == label).flatten()
        near = chosen[signals.labels_N[chosen] == label]
        total += float(torch.cdist(rows[mine], rows[near]).min(dim=1).values.sum())
    assert objectives.craig(signals, chosen) == pytest.approx(total, rel=1e-5)
    unit = torch.nn.functional.normalize(rows, dim=1)
    similar = (0.5 + 0.5 * unit @ unit[chosen].T).max(dim=1).values.sum()
    assert objectives.facility_location(signals, chosen) == pytest.approx(float(similar), rel=1e-5)
