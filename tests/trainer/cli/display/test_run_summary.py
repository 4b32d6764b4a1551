from __future__ import annotations

import pytest

from lipt.common.config.run_config import LearnersConfig, RunConfig
from lipt.trainer.cli.display.run_summary import run_lines
from tests.trainer.made_up import made_up_run


def test_a_run_says_what_was_fitted_to_its_data() -> None:
    assert not any("fitted" in line for line in run_lines(made_up_run()))
    lines = run_lines(made_up_run(fitted="2560 are more than 1597"))
    assert "fitted to the data: 2560 are more than 1597" in lines


@pytest.mark.parametrize(
    ("num_snapshots", "told"),
    [
        (0, "K=10 steps"),
        (1, "K=10 steps, a snapshot after step 10"),
        (2, "K=10 steps, a snapshot after steps 5, 10"),
    ],
)
def test_a_run_says_when_its_learners_leave_snapshots(num_snapshots: int, told: str) -> None:
    learners = LearnersConfig(num_steps=10, num_snapshots=num_snapshots)
    run = made_up_run(config=RunConfig(model="resnet8", learners=learners))
    (line,) = (line for line in run_lines(run) if line.startswith("model "))
    assert line.endswith(told)
