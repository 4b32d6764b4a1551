"""`lipt mixture`: how much of each of a run's sources to train on for a target."""

from __future__ import annotations

from pathlib import Path

from typer import Option, Typer

from lipt.cli import options as shared
from lipt.cli.output import run_with_progress
from lipt.common.terminal import CommandGroup

app = Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Get mixtures of a run's sources.",
)


@app.callback()
def mixture() -> None:
    """Get mixtures of a run's sources."""


@app.command()
@shared.grouped
def get(
    *,
    target_data: str = Option(..., help="Labelled examples of what you care about."),
    out: Path = Option(..., "--out", "-o", help="A .json file of the mixture."),
    run: shared.Run = "latest",
    target: str | None = Option(None, help="The column to predict of a table."),
    allow_module: shared.AllowModule = None,
    json: shared.Json = False,
    coordinator: shared.Coordinator,
) -> None:
    """Get a mixture: the shares with which a run's learners by source merge best on a target.

    Start such a run with: lipt run start --shards source
    """
    from lipt.cli.commands.mix import print_mixture

    shared.require_replaceable(out)
    modules = shared.modules_of(allow_module, target_data)
    with coordinator.connect() as client:
        found = run_with_progress(
            lambda report: client.mixture(
                run,
                target_data,
                target=target,
                allow_modules=modules,
                on_progress=lambda progress: report(str(progress)),
            )
        )
    found.save(out)
    print_mixture(out, found, as_json=json)
