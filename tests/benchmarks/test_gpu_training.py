"""The GPU's benchmark at tiny size on the CPU, and its arithmetic."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu_training import peak_of

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA L4", 121),
        ("NVIDIA L40S", None),
        ("cpu", None),
    ],
)
def test_a_cards_peak_is_known_by_its_name_or_not_at_all(name: str, peak: float | None) -> None:
    assert peak_of(name) == peak


def test_two_processes_train_at_once() -> None:
    command = ["-m", "benchmarks.gpu_training", "--tiny", "--device", "cpu", "--processes", "2"]
    done = subprocess.run(
        [sys.executable, *command],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "resnet8" in done.stdout
    assert "published on an A100" in done.stdout
