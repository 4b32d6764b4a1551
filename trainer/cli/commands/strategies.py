"""`lipt strategies`: what the coordinator can select by."""

from __future__ import annotations

import sys

import typer

from lipt.trainer.cli.arguments.options import (
    DEFAULT_COORDINATOR,
    Coordinator,
    Json,
    TlsCa,
    TlsCert,
    TlsKey,
    connect,
)


def list_strategies(
    *,
    json: Json = False,
    coordinator: Coordinator = DEFAULT_COORDINATOR,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
) -> None:
    """List the selection strategies: papers, needs, costs and options."""
    from lipt.trainer.cli.display.output import print_json
    from lipt.trainer.cli.display.strategies import print_strategies, strategy_lines

    with connect(coordinator, tls_cert, tls_key, tls_ca) as client:
        strategies = client.strategies()
    if json:
        print_json(strategies)
    elif sys.stdout.isatty():
        print_strategies(strategies)
    else:
        for strategy in strategies:
            for line in strategy_lines(strategy):
                typer.echo(line)
