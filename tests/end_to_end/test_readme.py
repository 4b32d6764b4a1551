"""The README's scripts, run as a reader would run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster import Cluster

README = Path(__file__).resolve().parents[2] / "README.md"
MAX_LINES = 25

# Twice past the 20 epochs after which the script selects again.
EPOCHS = 41


def script(name: str) -> str:
    """A code block of the README, by the file name that stands behind its language."""
    (found,) = re.findall(
        rf"^```python {re.escape(name)}\n(.*?)^```$",
        README.read_text("utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    return str(found)


def test_the_training_script_is_short() -> None:
    assert len(script("train.py").splitlines()) <= MAX_LINES


def test_the_training_script_trains_with_reselection_against_a_live_coordinator(
    cluster: Cluster, tmp_path: Path
) -> None:
    pytest.importorskip("sklearn")
    for name in ("mine.py", "train.py"):
        (tmp_path / name).write_text(script(name), encoding="utf-8")
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    environment = {"PYTHONPATH": path}
    coordinator = cluster.start_coordinator(
        "--model", "mine:model", "--data", "mine:data", environment=environment
    )
    cluster.start_worker("one", "--allow-module", "mine", environment=environment)
    with cluster.client() as client:
        client.start_run(
            {
                "learners": {"num_learners": 2, "num_steps": 5, "batch_size": 64},
                "soup": {"num_alphas": 3},
            }
        )
        done = subprocess.run(
            [sys.executable, "train.py"],
            cwd=tmp_path,
            env=os.environ
            | environment
            | {"LIPT_COORDINATOR": cluster.address, "EPOCHS": str(EPOCHS)},
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
        assert done.returncode == 0, done.stderr + coordinator.text()
        assert done.stderr == ""
        said = re.fullmatch(r"loss ([\d.]+), (\d+) times selected again\n", done.stdout)
        assert said is not None, done.stdout
        assert int(said[2]) == 2
        assert float(said[1]) < 1.0  # chance is ln 10 = 2.3
        assert client.run().config.model == "mine:model"
