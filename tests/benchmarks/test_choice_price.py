from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def test_every_kind_of_data_has_a_price_in_epochs() -> None:
    command = [sys.executable, "-m", "benchmarks.choice_price", "--tiny"]
    printed = subprocess.check_output(command, cwd=Path(__file__).parents[2], text=True)
    assert printed.count("training epoch") == printed.count("choice") == 4
