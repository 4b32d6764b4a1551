"""A client for re-selection that asks nobody."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lipt import StrategyView, Subset
from lipt.common.errors import LiptError


class FakeClient:
    """Answers with subset 0, 1, 2, ..., or with what a test puts in the way.

    asked: what was asked, by the names of the arguments.
    refusals: raised in the place of answers to questions with weights, one each.
    """

    def __init__(self, subset_of: Callable[[int], Subset]) -> None:
        self.asked: list[dict[str, Any]] = []
        self.refusals: list[LiptError] = []
        self._subset_of = subset_of

    @property
    def weights(self) -> list[bytes | None]:
        return [question.get("weights") for question in self.asked]

    def strategies(self) -> list[StrategyView]:
        plain = StrategyView("craig", "", "", True, True, (), needs=("signals",))
        return [plain, replace(plain, name="aum", needs=("learners",))]

    def subset(self, run: str, strategy: str, **options: Any) -> Subset:
        self.asked.append({"run": run, "strategy": strategy, **options})
        if self.refusals and options.get("weights") is not None:
            raise self.refusals.pop(0)
        return self._subset_of(len(self.asked) - 1)
