from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from lipt.common.states import RunState
from lipt.trainer.cli.demo.experiment import (
    DemoResult,
    FoundErrors,
    RunsAhead,
    SubsetResult,
    count_found,
    report_lines,
    spread,
)
from lipt.trainer.client.client import Client
from lipt.trainer.comparison.intervals import Difference
from lipt.trainer.comparison.trial import Plan
from lipt.trainer.main_training import Recipe
from lipt.trainer.views import DatasetView, RunView, SoupView
from tests.trainer.made_up import made_up_outcome, made_up_run
from tests.trainer.made_up_diagnosis import made_up_diagnosis


def test_wrong_labels_are_counted_among_the_suspects_and_the_worst_of_them() -> None:
    # 6 and 1 are the suspects; 1 and 3 are wrong.
    is_wrong_N = np.isin(np.arange(8), [1, 3])
    assert count_found(made_up_diagnosis(), is_wrong_N) == FoundErrors(
        num_examples=8,
        num_wrong=2,
        num_worst=2,
        wrong_of_worst=1,
        num_suspects=2,
        wrong_of_suspects=1,
    )


def test_only_the_worst_suspects_are_looked_at_by_themselves() -> None:
    is_wrong_N = np.arange(8) == 1
    found = count_found(made_up_diagnosis(), is_wrong_N, num_worst=1)  # that is 6
    assert (found.num_worst, found.wrong_of_worst) == (1, 0)
    assert (found.num_suspects, found.wrong_of_suspects) == (2, 1)


PLAN = Plan(
    strategies=("auto",),
    fractions=(0.1,),
    seeds=(0, 1),
    model="resnet8",
    recipe=Recipe(steps=1),
    baselines=("uniform",),
)


class Coordinator:
    """Notes in which order it is asked for what."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def start_run(self, overrides: dict[str, Any], *, name: str) -> RunView:
        self.asked.append(f"start {name}")
        return made_up_run(run_id=f"id-{overrides['seed']}", name=name)

    def subset(self, run: str, strategy: str, *, fraction: float) -> SimpleNamespace:
        self.asked.append(f"{strategy} of {run} at {fraction}")
        return SimpleNamespace(strategy=strategy)

    def finish(self, run: RunView) -> RunView:
        self.asked.append(f"finish {run.name}")
        return replace(run, message="finished")


def test_the_next_run_starts_when_the_subsets_of_this_one_are_there() -> None:
    coordinator = Coordinator()
    runs = RunsAhead(cast("Client", coordinator), PLAN, coordinator.finish)
    runs.start(0)
    assert runs.ready(0).message == "finished"
    assert coordinator.asked == [
        "start demo-0",
        "finish demo-0",
        "uniform of id-0 at 0.1",
        "auto of id-0 at 0.1",
        "start demo-1",
    ]


def test_every_run_is_done_once_however_often_it_is_asked_for() -> None:
    coordinator = Coordinator()
    runs = RunsAhead(cast("Client", coordinator), PLAN, coordinator.finish)
    for _ in range(2):
        assert [runs.ready(seed).name for seed in PLAN.seeds] == ["demo-0", "demo-1"]
        assert [subset.strategy for subset in runs.subsets(0)] == ["uniform", "auto"]
    assert sorted(coordinator.asked) == [
        "auto of id-0 at 0.1",
        "auto of id-1 at 0.1",
        "finish demo-0",
        "finish demo-1",
        "start demo-0",
        "start demo-1",
        "uniform of id-0 at 0.1",
        "uniform of id-1 at 0.1",
    ]


@pytest.mark.parametrize(
    ("counts", "text"),
    [([18, 18], "18 each"), ([0, 40, 7], "0 to 40"), ([], "-")],
)
def test_the_spread_of_classes(counts: list[int], text: str) -> None:
    assert spread(counts) == text


def test_the_report_sets_accuracies_and_subsets_side_by_side_and_ends_with_the_verdict() -> None:
    run = made_up_run(state=RunState.READY, soup=SoupView(0.1, 0.375, 0.5, 0.625, 1, 200))
    file = Path("lipt-demo/subset-grand.npy")
    outcome = made_up_outcome(
        strategy="grand", difference=Difference(-0.4, -0.42, -0.38), bytes_sent=3_500_000
    )
    result = DemoResult(
        dataset=DatasetView("digits", 1797, ("0", "1"), (900, 897), "abc", (1, 8, 8)),
        found=FoundErrors(1797, 90, 20, 19, 100, 70),
        run=run,
        subsets=(SubsetResult("grand", 180, (90, 90), 36, "ab" * 32, (file,)),),
        outcomes=(outcome,),
        verdict="At 10% grand does not beat random.\nChoosing cost 5 s.",
        files=(file,),
        report=Path("lipt-demo/report.html"),
        diagnosis=Path("lipt-demo/diagnosis.html"),
        seconds=12.34,
    )
    lines = report_lines(result)
    assert "digits: 1797 examples, 1x8x8 images, 2 classes" in lines
    assert (
        "90 of 1797 labels are wrong on purpose. The diagnosis, which is not told of them, "
        "suspects 100 labels: 70 of these are wrong, and 19 of the first 20."
    ) in lines
    assert "soup (theta_p)  62.5%" in lines
    assert "mean learner    37.5%" in lines
    assert [line.split() for line in lines if line.startswith("grand")] == [
        ["grand", "180", "90", "each", "36", "abababababab", str(file)]
    ]
    (row,) = (line for line in lines if line.startswith("10% "))
    assert "50.0% +- 1.0" in row
    assert "-40.0 (-42.0 to -38.0)" in row
    assert "3.5 MB" in row
    assert lines[lines.index(row) + 1 :] == [
        "",
        "Intervals are over the seeds of the whole pipeline.",
        "",
        "At 10% grand does not beat random.",
        "Choosing cost 5 s.",
        "",
        "diagnosis: lipt-demo/diagnosis.html",
        "report: lipt-demo/report.html",
        "done in 12.3 s",
    ]
    assert f"wrote {file}" in lines
