from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lipt.trainer.subset import Subset


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, object]], str]:
    pytest.importorskip("sklearn")
    folder = tmp_path_factory.mktemp("demo")
    done = subprocess.run(
        [sys.executable, "-m", "lipt.trainer.cli", "demo", "--dir", str(folder), "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        # Settings of the user's own processes must not reach those of the demo.
        env=os.environ | {"LIPT_DATA": "/nowhere", "LIPT_RUN__LEARNERS__NUM_LEARNERS": "99"},
    )
    assert done.returncode == 0, done.stderr
    return folder, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_the_demo_shows_the_run_to_its_end(
    demo: tuple[Path, list[dict[str, object]], str],
) -> None:
    _, objects, _ = demo
    *changes, result = objects
    assert [change["state"] for change in changes][-1] == "ready"
    assert result["run"] == changes[-1]
    learners = changes[-1]["learners"]
    assert isinstance(learners, list)
    assert len(learners) == 8
    assert {learner["state"] for learner in learners} == {"done"}


def test_the_demo_leaves_subsets_weights_logs_and_a_record(
    demo: tuple[Path, list[dict[str, object]], str],
) -> None:
    folder, objects, _ = demo
    subset = Subset.load(folder / "subset-uniform_per_class.npy")
    assert len(subset) == 180  # 10% of 1,797, rounded
    assert np.load(folder / "subset-uniform_per_class.npy").tolist() == subset.indices.tolist()
    assert Subset.load(folder / "subset-uniform_per_class.csv") == subset
    assert (folder / "theta_p.safetensors").stat().st_size > 0
    assert json.loads((folder / "run.json").read_text()) == objects[-1]["run"]
    assert (folder / "logs" / "coordinator.log").stat().st_size > 0


def test_the_demo_leaves_no_process(demo: tuple[Path, list[dict[str, object]], str]) -> None:
    _, _, said = demo
    pids = [int(pid) for pid in re.findall(r"started \(process (\d+)\)", said)]
    assert len(pids) == 4
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
