"""`lipt strategies`: what the coordinator can select by."""

from __future__ import annotations

import sys
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
    """List the selection strategies: papers, needs, costs and options."""
    from lipt.trainer.cli.output import print_json

    with connect(coordinator, tls_cert, tls_key, tls_ca) as client:
        strategies = client.strategies()
    if json:
        print_json(strategies)
    elif sys.stdout.isatty():
        from lipt.trainer.cli.strategy_table import print_strategies

        print_strategies(strategies)
    else:
        for strategy in strategies:
            for line in strategy_lines(strategy):
                typer.echo(line)


def strategy_lines(strategy: StrategyView) -> list[str]:
    """A strategy as a few lines of text."""
    lines = [f"{strategy.name}: {strategy.summary}", f"    {', '.join(facts(strategy))}"]
    if strategy.paper:
        lines.append(f"    {strategy.paper}")
    return lines + [f"    --option {text}" for text in option_texts(strategy)]


def facts(strategy: StrategyView) -> list[str]:
    """What there is to know before one chooses it, in a few words each."""
    return [
        *([f"needs {' and '.join(strategy.needs)}"] if strategy.needs else []),
        "with weights" if strategy.returns_weights else "without weights",
        "balanced per class" if strategy.balanced_by_default else "not balanced per class",
        *([f"cost {strategy.cost}"] if strategy.cost else []),
    ]


def option_texts(strategy: StrategyView) -> list[str]:
    """Each option as NAME=DEFAULT, with what else it takes (values, or a range) and what it is."""
    texts = []
    for option in strategy.options:
        text = f"{option.name}={option.default_value}"
        if option.allowed_values:
            choice = "one of " if len(option.allowed_values) > 1 else ""
            text += f" ({choice}{', '.join(option.allowed_values)})"
        texts.append(f"{text}: {option.help}" if option.help else text)
    return texts
