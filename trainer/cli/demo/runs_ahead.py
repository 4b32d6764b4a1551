"""Runs ahead: while this process trains on one seed's subsets, the next seed's run is under way."""

from __future__ import annotations

from collections.abc import Callable

from lipt.trainer.client.client import Client
from lipt.trainer.comparison.plan import Plan
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.views import RunView


class RunsAhead:
    """A run and its subsets for each seed of a plan of one fraction, each done once.

    Args:
        client: connected to the coordinator.
        plan: whose seeds are taken in its order.
        finish: waits until a run is ready, and gives it as it is then.
    """

    def __init__(self, client: Client, plan: Plan, finish: Callable[[RunView], RunView]) -> None:
        self._client, self._plan, self._finish = client, plan, finish
        self._started: dict[int, RunView] = {}
        self._ready: dict[int, tuple[RunView, list[Subset]]] = {}

    def start(self, seed: int) -> RunView:
        """The seed's run as it was when it started."""
        if seed not in self._started:
            overrides = self._plan.overrides(seed)
            self._started[seed] = self._client.start_run(overrides, name=f"demo-{seed}")
        return self._started[seed]

    def ready(self, seed: int) -> RunView:
        """The seed's run, ready; the next seed's has started."""
        return self._of(seed)[0]

    def subsets(self, seed: int) -> list[Subset]:
        """The subsets of the seed's run, in the plan's order."""
        return self._of(seed)[1]

    def _of(self, seed: int) -> tuple[RunView, list[Subset]]:
        if seed not in self._ready:
            run = self._finish(self.start(seed))
            # A coordinator computes one thing after another. Asked for now, the subsets need
            # not wait for the next run; it keeps them for whoever asks again.
            (fraction,) = self._plan.fractions
            subsets = [
                self._client.subset(run.run_id, strategy, fraction=fraction)
                for strategy in self._plan.all_strategies()
            ]
            self._ready[seed] = run, subsets
            following = self._plan.seeds[self._plan.seeds.index(seed) + 1 :]
            if following:
                self.start(following[0])
        return self._ready[seed]
