import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import soups
from benchmarks.selection import objectives
from benchmarks.selection.workload import Shape, make_signals, materialized
from lipt.common.config.run_config import SoupMethod

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("arguments", "row", "count"),
    [
        ("choice_price --tiny", "training epoch", 5),
        # A cell of its own: the measured seconds may contain these digits.
        ("one_call --tiny", r"│ +60 +│", 3),
        ("gpu_training --tiny --device cpu --processes 2", "published on an A100", 1),
    ],
)
def test_every_benchmark_runs_on_little_data(arguments: str, row: str, count: int) -> None:
    command = [sys.executable, "-m", *f"benchmarks.{arguments}".split()]
    printed = subprocess.check_output(command, cwd=Path(__file__).parents[2], text=True)
    assert len(re.findall(row, printed)) == count


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


def test_evaluated_examples_are_counted_for_each_method(monkeypatch: pytest.MonkeyPatch) -> None:
    run: dict[str, Any] = {
        "learners": {"num_learners": 2, "num_steps": 1, "num_minibatches": 1, "batch_size": 32}
    }
    monkeypatch.setitem(soups.RUNS, "digits", run)
    found = soups.measure("digits", 0)
    # Of 20 of each digit, theta*, two learners, and nine mixtures of them, or one.
    examples = {method: counted.examples for method, counted in found.items()}
    assert examples == {
        SoupMethod.INTERPOLATION: 12 * 200,
        SoupMethod.GREEDY: 4 * 200,
        SoupMethod.UNIFORM: 4 * 200,
    }
    assert 0 < found[SoupMethod.GREEDY].accuracy < 1
