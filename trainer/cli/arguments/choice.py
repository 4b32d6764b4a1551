"""The choice of subsets in `lipt train`: its flags, and which of them go together.

A file of a subset, a strategy of the coordinator's, other examples for every epoch, or all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lipt.trainer.cli.arguments.options import Budget, Fraction, Options, Preset, Proxy

if TYPE_CHECKING:
    from lipt.trainer.reselection.reselection import SelectionOptions


@dataclass(frozen=True)
class Choice:
    """A strategy or a way to redraw in place of a file, and what is asked for each time."""

    strategy: Annotated[
        str | None,
        typer.Option(
            "--strategy", "-s", help="Have the coordinator choose the subset, in place of --subset."
        ),
    ] = None
    redraw: Annotated[
        Literal["random", "stale", "infobatch"] | None,
        typer.Option(
            "--redraw",
            help="Draw other examples for every epoch, without a coordinator: random ones, those "
            "with the highest last losses, or all but half of the easy ones.",
        ),
    ] = None
    fraction: Fraction = None
    budget: Budget = None
    options: Options = None
    preset: Preset = None
    proxy: Proxy = None
    every: Annotated[
        int | None, typer.Option(min=1, help="Epochs until the subset is chosen again (20).")
    ] = None
    prefetch: Annotated[
        bool,
        typer.Option(
            "--prefetch",
            help="Ask for the next subset an epoch early, so that training does not wait.",
        ),
    ] = False

    def request(self, *, subset_given: bool) -> SelectionOptions:
        """What to ask for; nothing where no strategy was given.

        Raises:
            ConfigError: flags that do not go together.
        """
        from lipt.common.errors import ConfigError
        from lipt.trainer.cli.arguments.overrides import parse_options

        self._require_one_way(subset_given=subset_given)
        if self.strategy is None:
            self._require_nothing_alone()
        if self.strategy is None and self.redraw is None:
            return {}
        if (self.fraction is None) == (self.budget is None):
            raise ConfigError("give one of --fraction and --budget, e.g. --fraction 0.1")
        if self.strategy is None:
            return {}
        asked: SelectionOptions = {
            "fraction": self.fraction,
            "budget": self.budget,
            "options": parse_options(self.options or []),
            "prefetch": self.prefetch,
        }
        if self.preset is not None:
            asked["preset"] = self.preset
        if self.proxy is not None:
            asked["proxy"] = self.proxy
        return asked if self.every is None else {**asked, "every": self.every}

    def _require_one_way(self, *, subset_given: bool) -> None:
        from lipt.common.errors import ConfigError

        if self.redraw is not None and (subset_given or self.strategy is not None):
            other = "--subset" if subset_given else "--strategy"
            raise ConfigError(
                f"{other} and --redraw were both given. --redraw takes its examples from all of "
                "--data, other ones for every epoch. Drop one."
            )
        if subset_given and self.strategy is not None:
            raise ConfigError(
                "--subset and --strategy were both given. A file is trained on as it is; a "
                "strategy's subset is asked for again as the model changes. Drop one."
            )

    def _require_nothing_alone(self) -> None:
        from lipt.common.errors import ConfigError

        for_both: dict[str, object] = {
            "--fraction": self.fraction,
            "--budget": self.budget,
            "--option": self.options or None,
        }
        for name, value in for_both.items():
            if value is not None and self.redraw is None:
                raise ConfigError(
                    f"{name} was given without --strategy or --redraw. Give one of them, or none."
                )
        for_strategies: dict[str, object] = {
            "--preset": self.preset,
            "--proxy": self.proxy,
            "--every": self.every,
            "--prefetch": self.prefetch or None,
        }
        for name, value in for_strategies.items():
            if value is not None:
                raise ConfigError(f"{name} was given without --strategy. Give both, or none.")
