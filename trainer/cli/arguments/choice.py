"""The choice of subsets in `lipt train`: its flags, and which of them go together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from lipt.trainer.cli.arguments.options import Budget, Fraction, Options, Proxy

if TYPE_CHECKING:
    from lipt.trainer.reselection.reselection import SelectionOptions


@dataclass(frozen=True)
class Choice:
    """A strategy in place of a file, and what it is asked for each time."""

    strategy: Annotated[
        str | None,
        typer.Option(
            "--strategy", "-s", help="Have the coordinator choose the subset, in place of --subset."
        ),
    ] = None
    fraction: Fraction = None
    budget: Budget = None
    options: Options = None
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

        if self.strategy is None:
            given = {
                "--fraction": self.fraction,
                "--budget": self.budget,
                "--option": self.options or None,
                "--proxy": self.proxy,
                "--every": self.every,
                "--prefetch": self.prefetch or None,
            }
            alone = [name for name, value in given.items() if value is not None]
            if alone:
                raise ConfigError(f"{alone[0]} was given without --strategy. Give both, or none.")
            return {}
        if subset_given:
            raise ConfigError(
                "--subset and --strategy were both given. A file is trained on as it is; a "
                "strategy's subset is asked for again as the model changes. Drop one."
            )
        if (self.fraction is None) == (self.budget is None):
            raise ConfigError("give one of --fraction and --budget, e.g. --fraction 0.1")
        asked: SelectionOptions = {
            "fraction": self.fraction,
            "budget": self.budget,
            "options": parse_options(self.options or []),
            "prefetch": self.prefetch,
        }
        if self.proxy is not None:
            asked["proxy"] = self.proxy
        return asked if self.every is None else {**asked, "every": self.every}
