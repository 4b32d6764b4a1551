"""Choosing, as a comparison needs it: at a coordinator, or in this process."""

from __future__ import annotations

from typing import Protocol

from lipt.trainer.subsets.subset import Subset
from lipt.trainer.views import CostsView, StrategyView


class Data(Protocol):
    """What subsets are chosen from."""

    @property
    def source(self) -> str: ...  # noqa: D102 - its name
    @property
    def fingerprint(self) -> str: ...  # noqa: D102 - what tells it from other data


class Info(Protocol):
    """Who chooses."""

    @property
    def dataset(self) -> Data | None: ...  # noqa: D102 - as above


class Run(Protocol):
    """A seed's pre-training."""

    @property
    def run_id(self) -> str: ...  # noqa: D102 - its name
    @property
    def fitted(self) -> str: ...  # noqa: D102 - what was lowered for the data
    @property
    def costs(self) -> CostsView | None: ...  # noqa: D102 - what it has taken


class Chooser(Protocol):
    """Chooses subsets: `lipt.Client` is one."""

    def info(self) -> Info: ...  # noqa: D102 - what it chooses from
    def strategies(self) -> list[StrategyView]: ...  # noqa: D102 - what it chooses by
    def subset(  # noqa: D102 - as `Client.subset`
        self, run: str, strategy: str, *, fraction: float, proxy: str | None = None
    ) -> Subset: ...
