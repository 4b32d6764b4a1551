"""`lipt strategies`: what there is to select by, here or at a coordinator."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from lipt.common.text import say
from lipt.trainer.cli.arguments.groups import grouped
from lipt.trainer.cli.arguments.options import Coordinator, Json
from lipt.trainer.cli.display.output import print_result

if TYPE_CHECKING:
    from lipt.trainer.views import StrategyView


@grouped
def list_strategies(
    context: typer.Context, *, json: Json = False, coordinator: Coordinator
) -> None:
    """List the selection strategies: papers, needs, costs and options.

    They are those of this installation, unless a coordinator is named, which is asked for its own.
    """
    from lipt.trainer.cli.display.strategies import print_strategies, strategy_lines

    named = coordinator.is_named(context)
    strategies = _of_coordinator(coordinator) if named else _installed()
    if sys.stdout.isatty() and not json:
        print_strategies(strategies)
    else:
        lines = (line for strategy in strategies for line in strategy_lines(strategy))
        print_result(strategies, lines, as_json=json)


def _of_coordinator(coordinator: Coordinator) -> list[StrategyView]:
    with coordinator.connect() as client:
        return client.strategies()


def _installed() -> list[StrategyView]:
    from lipt.trainer.cli.plugins import installed_strategies
    from lipt.trainer.client.conversion import view_of
    from lipt.trainer.views import StrategyView

    say("strategies of this installation; --coordinator HOST:PORT lists a coordinator's", err=True)
    return [view_of(StrategyView, strategy) for strategy in installed_strategies()]
