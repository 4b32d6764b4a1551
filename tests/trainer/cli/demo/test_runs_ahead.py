from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from lipt.trainer.cli.demo.runs_ahead import RunsAhead
from lipt.trainer.client.client import Client
from lipt.trainer.comparison.plan import Plan
from lipt.trainer.main_training import Recipe
from lipt.trainer.views import RunView
from tests.trainer.made_up import made_up_run

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
