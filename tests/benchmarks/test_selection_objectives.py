import pytest
import torch

from benchmarks.selection import objectives
from benchmarks.selection.workload import Shape, make_signals, materialized

pytestmark = pytest.mark.slow


def test_objectives_equal_those_of_explicit_gradients() -> None:
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
