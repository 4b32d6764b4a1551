"""`lipt strategies`: what the coordinator can select by."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from lipt.trainer.cli.options import (
    DEFAULT_COORDINATOR,
    Coordinator,
    Json,
    TlsCa,
    TlsCert,
    TlsKey,
    connect,
)

if TYPE_CHECKING:
    from lipt.trainer.views import StrategyView


def list_strategies(
    *,
    json: Json = False,
    coordinator: Coordinator = DEFAULT_COORDINATOR,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
) -> None:
    """List the selection strategies and their options."""
    from lipt.trainer.cli.output import print_json

    with connect(coordinator, tls_cert, tls_key, tls_ca) as client:
        strategies = client.strategies()
    if json:
        print_json(strategies)
        return
    for strategy in strategies:
        for line in strategy_lines(strategy):
            typer.echo(line)


def strategy_lines(strategy: StrategyView) -> list[str]:
    """A strategy as a few lines of text."""
    facts = [
        "balanced per class" if strategy.balanced_by_default else "not balanced per class",
        "with weights" if strategy.returns_weights else "without weights",
        *([strategy.paper] if strategy.paper else []),
    ]
    lines = [f"{strategy.name}: {strategy.summary}", f"    {', '.join(facts)}"]
    for option in strategy.options:
        allowed = f" (one of {', '.join(option.allowed_values)})" if option.allowed_values else ""
        lines.append(f"    --option {option.name}={option.default_value}{allowed}")
    return lines
