"""The `lipt` command: its subcommands, and how its errors look.

Help is plain text rather than rich's panels, which would cost a third of the time that `--help`
may take. Commands whose modules import much are imported when they are called or shown in the
help. A command is a span where OTEL_* variables ask for traces; TRACEPARENT puts it into a trace.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, cast

import typer
import typer.main

from lipt.cli.commands import (
    certs,
    compare,
    demo,
    diagnose,
    report,
    run,
    service,
    subset,
    train,
)
from lipt.cli.output import process_exit
from lipt.common.config.environment import require_known_variables
from lipt.common.observability.tracing import attached, exporting, span, wants_export
from lipt.common.terminal import SHORT_HELP, CommandGroup, Version, print_error


@contextmanager
def as_span(group: Any, context: Any) -> Iterator[None]:
    """The block as a span with the name of the command that was typed."""
    if not wants_export(os.environ):
        yield
        return
    done = None
    name = " ".join(["lipt", *_words(group, context, sys.argv[1:])])
    with attached(os.environ.get("TRACEPARENT", "")), span(name):
        try:
            yield
        except typer.Exit as end:
            if end.exit_code:
                raise
            done = end
    if done is not None:
        raise done


def _words(command: Any, context: Any, arguments: list[str]) -> Iterator[str]:
    for argument in arguments:
        find = getattr(command, "get_command", None)
        command = find and find(context, argument)
        if command is None:
            return
        yield argument


# Modules that are imported on demand, with the name of their `typer.Typer`.
_ON_DEMAND = {
    "plan": ("lipt.cli.commands.plan", "app"),
    "select": ("lipt.cli.commands.select", "app"),
    "mix": ("lipt.cli.commands.mix", "app"),
    "mixture": ("lipt.cli.commands.mix", "run_app"),
    "state": ("lipt.coordinator.state.cli", "app"),
    "up": ("lipt.worker.pool.up", "app"),
}
_PANELS = {
    "Data": ("select", "mix", "diagnose", "check", "plan", "distill"),
    "Runs and their subsets": ("run", "subset", "mixture", "strategies", "weights"),
    "Main training": ("train", "compare", "report", "track"),
    "The service": ("demo", "up", "doctor", "dashboard", "state", "token", "certs"),
}


class _Commands(CommandGroup):
    def panels(self, names: list[str]) -> dict[str, list[str]]:
        return {
            heading: [name for name in listed if name in names]
            for heading, listed in _PANELS.items()
        }

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *_ON_DEMAND]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command: Any = super().get_command(ctx, cmd_name)
        if command is None and cmd_name in _ON_DEMAND:
            module, attribute = _ON_DEMAND[cmd_name]
            command = typer.main.get_command(getattr(import_module(module), attribute))
            command.name = cmd_name
        return command

    def invoke(self, ctx: Any) -> Any:
        try:
            with as_span(self, ctx):
                return super().invoke(ctx)
        except OSError as error:
            if error.errno == errno.EPIPE:  # `lipt run list | head`
                raise
            where = f"{error.filename}: " if error.filename else ""
            sentence = f"{where}{error.strerror or error}"
        except Exception as error:
            # Where the module was not imported, none of its errors was raised.
            errors = sys.modules.get("lipt.common.errors")
            if errors is None or not isinstance(error, cast("type[Exception]", errors.LiptError)):
                raise
            sentence = str(error)
        print_error("lipt", sentence)
        raise typer.Exit(1)


def _lipt(*, version: Version = False) -> None:  # noqa: ARG001 - shown before anything else
    """Choose the part of your data that is worth training on."""
    require_known_variables(os.environ)


def program() -> None:
    """Run `lipt` as a process: the entry point of the console script and of `python -m`."""
    # Tracing problems are debug logs: the tracing variables may be meant for other programs.
    with process_exit(), exporting("lipt", problem_level=logging.DEBUG):
        main(prog_name="lipt")


main = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=SHORT_HELP,
)
main.callback()(_lipt)
main.add_typer(run.app, name="run")
main.add_typer(subset.app, name="subset")
main.add_typer(subset.weights_app, name="weights")
main.add_typer(service.token_app, name="token")
main.command("dashboard")(service.dashboard)
main.command("check")(diagnose.check)
main.command("diagnose")(diagnose.diagnose)
main.command("train")(train.train)
main.command("distill")(train.distill)
main.command("compare")(compare.compare)
main.command("report")(report.report)
main.command("strategies")(service.list_strategies)
main.add_typer(certs.app, name="certs")
main.command("track")(report.track)
main.command("doctor")(service.doctor)
main.command("demo")(demo.demo)
