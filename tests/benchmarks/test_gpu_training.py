import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def test_two_processes_train_at_once() -> None:
    command = ["-m", "benchmarks.gpu_training", "--tiny", "--device", "cpu", "--processes", "2"]
    root = Path(__file__).parents[2]
    printed = subprocess.check_output([sys.executable, *command], cwd=root, text=True)
    assert "resnet8" in printed
    assert "published on an A100" in printed
