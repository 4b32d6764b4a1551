"""Subsets for `lipt train --strategy`: the first one, and the source of the later ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any

from lipt.common.errors import ConfigError
from lipt.trainer.cli.display.output import run_talking
from lipt.trainer.reselection.reselection import Reselection, SelectionOptions, require_reselectable

if TYPE_CHECKING:
    from torch import nn

    from lipt.trainer.client.client import Client
    from lipt.trainer.subsets.subset import Subset


@dataclass
class Reselecting:
    """Source of subsets for `fit`, with a summary of what it did."""

    client: Client
    run: str
    strategy: str
    request: SelectionOptions
    say: Callable[[str], None]
    _first_seconds: float = field(default=0.0, init=False)
    _source: Reselection | None = field(default=None, init=False)

    def require_model(self, model: str) -> None:
        """Refuse a model whose weights the run could not select on, before it is trained."""
        view = self.client.ready_run(self.run)
        self.run = view.run_id
        if view.config.model != model:
            raise ConfigError(
                f"run {view.label} selects on weights of {view.config.model}, but --model is "
                f"{model}. Give --model {view.config.model}, or another --run."
            )

    def __call__(self, model: nn.Module, first: Subset | None) -> Reselection:
        """The source for a model in training, which begins with `first` or asks."""
        if first is None:
            started = monotonic()
            first = run_talking(self._ask_first, self.say)
            self._first_seconds = monotonic() - started
            if first.stopped_early:
                self.say(f"{first.strategy} stopped early: {first.stopped_early}")
        asked: SelectionOptions = {**self.request, "run": self.run, "first": first}
        self._source = Reselection(self.client, model, self.strategy, **asked)
        return self._source

    @property
    def waited_seconds(self) -> float:
        """How long training stood still for subsets, the first one included."""
        later = 0.0 if self._source is None else self._source.waited_seconds
        return self._first_seconds + later

    def history(self) -> list[Any]:
        """Every subset that was chosen again, in order."""
        return [] if self._source is None else self._source.history

    def summary(self) -> str:
        """How often the subset was chosen again, and how long training waited for that."""
        history = self.history()
        times = "once" if len(history) == 1 else f"{len(history)} times"
        stale = sum(selected.stale_epochs > 0 for selected in history)
        aged = f" ({stale} on weights an epoch old)" if stale else ""
        return (
            f"the subset was chosen again {times}{aged}; training waited "
            f"{self.waited_seconds:.1f} s for subsets"
        )

    def _ask_first(self, report: Callable[[str], None]) -> Subset:
        report(f"waiting for the first subset by {self.strategy}")
        require_reselectable(self.client, self.strategy)
        return self.client.subset(
            self.run,
            self.strategy,
            fraction=self.request.get("fraction"),
            budget=self.request.get("budget"),
            options=self.request.get("options"),
            preset=self.request.get("preset"),
            on_progress=lambda progress: report(f"{self.strategy}: {progress.activity}"),
        )
