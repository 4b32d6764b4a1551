"""The `lipt` command: its subcommands, and how its errors look.

Help is plain text rather than rich's panels, which would cost a third of the
time that `--help` may take.
"""

from __future__ import annotations

import errno
import sys
from typing import Any, cast

import typer
from typer.core import TyperGroup

from lipt.common.text import SHORT_HELP, Version, complain
from lipt.trainer.cli.commands import (
    certs,
    check,
    compare,
    dashboard,
    demo,
    diagnose,
    distill,
    doctor,
    report,
    run,
    strategies,
    subset,
    token,
    top,
    track,
    train,
    weights,
)
from lipt.trainer.cli.display.leaving import leaving
from lipt.trainer.cli.plugins import plugin, plugin_names
from lipt.trainer.cli.traced import as_span, tracing


class _Commands(TyperGroup):
    """The commands below and those that are plugged in.

    Prints what this package raises on purpose as a sentence, without a traceback.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """All names, this package's first."""
        return [*super().list_commands(ctx), *plugin_names()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name; this package's own go first."""
        return super().get_command(ctx, cmd_name) or plugin(cmd_name)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; a refusal ends the process with status 1."""
        try:
            with as_span(self, ctx):
                return super().invoke(ctx)
        except OSError as error:
            if error.errno == errno.EPIPE:  # `lipt run list | head`
                raise
            where = f"{error.filename}: " if error.filename else ""
            _fail(f"{where}{error.strerror or error}")
        except Exception as error:
            if not _is_refusal(error):
                raise
            _fail(str(error))


def _is_refusal(error: Exception) -> bool:
    # Where the module was not imported, nobody can have raised one of its errors.
    errors = sys.modules.get("lipt.common.errors")
    return errors is not None and isinstance(error, cast("type[Exception]", errors.LiptError))


def _fail(sentence: str) -> None:
    complain("lipt", sentence)
    raise typer.Exit(1)


def _lipt(*, version: Version = False) -> None:
    """Subsets of a training set, chosen on a model that was pre-trained in pieces."""


def program() -> None:
    """`lipt` as a process of its own: what the console script and `python -m` call."""
    with leaving(), tracing():
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
main.add_typer(weights.app, name="weights")
main.add_typer(token.app, name="token")
main.command("dashboard")(dashboard.dashboard)
main.command("check")(check.check)
main.command("diagnose")(diagnose.diagnose)
main.command("train")(train.train)
main.command("distill")(distill.distill)
main.command("compare")(compare.compare)
main.command("report")(report.report)
main.command("strategies")(strategies.list_strategies)
main.add_typer(certs.app, name="certs")
main.command("track")(track.track)
main.command("top")(top.top)
main.command("doctor")(doctor.examine)
main.command("demo")(demo.demonstrate)
