"""Comparison of one call: who chooses, and what came of every strategy, shown as a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from html import escape

from lipt.common.data import Dataset
from lipt.coordinator.rpc.strategies import describe_strategies
from lipt.pretraining import Pretrained
from lipt.trainer.client.conversion import view_of
from lipt.trainer.comparison import table
from lipt.trainer.comparison.outcomes import Outcome
from lipt.trainer.comparison.trial import Trial
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.views import CostsView, StrategyView


@dataclass(frozen=True)
class Comparison:
    """Strategies against what people do instead, at equal steps.

    Attributes:
        outcomes: one per strategy and fraction, over all seeds.
        trials: every training.
        verdict: whether a strategy beat random, in a sentence.
    """

    outcomes: tuple[Outcome, ...]
    trials: tuple[Trial, ...]
    verdict: str

    def __str__(self) -> str:
        return "\n".join([*table.plain(self.outcomes), "", self.verdict])

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        head = "".join(f"<th>{escape(name)}</th>" for name in table.HEADER)
        rows = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in table.cells(row)) + "</tr>"
            for row in self.outcomes
        )
        return f"<table><tr>{head}</tr>{rows}</table><p>{escape(self.verdict)}</p>"


class Run:
    """A seed's pre-training in this process."""

    def __init__(self, seed: int, pretrained: Pretrained) -> None:
        self.run_id = str(seed)
        self.pretrained = pretrained
        self.fitted = pretrained.fitted

    @property
    def costs(self) -> CostsView:
        """What it has taken so far; nothing goes to a worker."""
        seconds = self.pretrained.seconds
        stages = ("initialization", "sharding", "training", "merging")
        taken = {f"{stage}_seconds": seconds.get(f"{stage}_seconds", 0.0) for stage in stages}
        return CostsView(**taken, bytes_to_workers=0, bytes_from_workers=0)


@dataclass(frozen=True)
class _Info:
    dataset: Dataset


class Chooser:
    """Chooses in this process, from one pre-training per seed.

    Args:
        pretrained: makes a seed's.
    """

    def __init__(self, pretrained: Callable[[int], Pretrained]) -> None:
        self._make = pretrained
        self._runs: dict[int, Run] = {}

    def run_of(self, seed: int) -> Run:
        """The pre-training of a seed, which trains when it is asked for what needs it."""
        if seed not in self._runs:
            self._runs[seed] = Run(seed, self._make(seed))
        return self._runs[seed]

    def info(self) -> _Info:
        """What is chosen from."""
        return _Info(self.run_of(0).pretrained.data)

    def strategies(self) -> list[StrategyView]:
        """What there is to choose by."""
        return [view_of(StrategyView, strategy) for strategy in describe_strategies().strategies]

    def subset(
        self, run: str, strategy: str, *, fraction: float, proxy: str | None = None
    ) -> Subset:
        """Choose by a run's name."""
        return self._runs[int(run)].pretrained.select(strategy, fraction, proxy=proxy)
