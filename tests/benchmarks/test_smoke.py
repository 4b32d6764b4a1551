import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("arguments", "line", "count"),
    [
        ("choice_price --tiny", "training epoch", 4),
        ("gpu_training --tiny --device cpu --processes 2", "published on an A100", 1),
    ],
)
def test_every_benchmark_runs_on_little_data(arguments: str, line: str, count: int) -> None:
    command = [sys.executable, "-m", *f"benchmarks.{arguments}".split()]
    printed = subprocess.check_output(command, cwd=Path(__file__).parents[2], text=True)
    assert printed.count(line) == count
