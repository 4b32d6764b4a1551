from __future__ import annotations

from collections.abc import Callable

import pytest

from lipt.common.config.run_config import LearnersConfig, RunConfig
from lipt.trainer.cli.display.show import run_lines
from lipt.trainer.views import RunView


@pytest.mark.parametrize(
    ("num_snapshots", "told"),
    [
        (0, "K=10 steps"),
        (1, "K=10 steps, a snapshot after step 5"),
        (2, "K=10 steps, a snapshot after steps 3, 7"),
    ],
)
def test_a_run_says_when_its_learners_leave_snapshots(
    make_run: Callable[..., RunView], num_snapshots: int, told: str
) -> None:
    learners = LearnersConfig(num_steps=10, num_snapshots=num_snapshots)
    run = make_run(config=RunConfig(model="resnet8", learners=learners))
    (line,) = (line for line in run_lines(run) if line.startswith("model "))
    assert line.endswith(told)
