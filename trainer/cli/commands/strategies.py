"""`lipt strategies`: what the coordinator can select by."""

from __future__ import annotations

import sys

from lipt.trainer.cli.arguments.groups import grouped
from lipt.trainer.cli.arguments.options import Coordinator, Json
from lipt.trainer.cli.display.output import print_result


@grouped
def list_strategies(*, json: Json = False, coordinator: Coordinator) -> None:
    """List the selection strategies: papers, needs, costs and options."""
    from lipt.trainer.cli.display.strategies import print_strategies, strategy_lines

    with coordinator.connect() as client:
        strategies = client.strategies()
    if sys.stdout.isatty() and not json:
        print_strategies(strategies)
    else:
        lines = (line for strategy in strategies for line in strategy_lines(strategy))
        print_result(strategies, lines, as_json=json)
