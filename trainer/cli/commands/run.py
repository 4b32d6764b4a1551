"""`lipt run`: start, list, show, watch and cancel runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lipt.common.config.knobs import option_help
from lipt.common.config.run_config import RunConfig
from lipt.common.terminal import say
from lipt.trainer.cli.display.output import print_result, run_talking
from lipt.trainer.cli.options import Coordinator, Json, RunArgument, grouped
from lipt.trainer.writing.formatting import format_percent, table_lines

if TYPE_CHECKING:
    from lipt.trainer.client.client import Client
    from lipt.trainer.views import RunView

# As shells have it: 128 and the number of the signal.
_INTERRUPTED = 130

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Start, list, show, watch and cancel runs."
)


def _knob(name: str) -> Any:
    # What is not given is the coordinator's own default, which need not be this version's.
    return typer.Option(help=option_help(RunConfig, name, show_default=False))


@app.command()
@grouped
def start(
    *,
    name: Annotated[str, typer.Option("--name", help="A name to find the run by.")] = "",
    model: Annotated[str | None, _knob("model")] = None,
    seed: Annotated[int | None, _knob("seed")] = None,
    num_learners: Annotated[int | None, _knob("learners.num_learners")] = None,
    num_steps: Annotated[int | None, _knob("learners.num_steps")] = None,
    batch_size: Annotated[int | None, _knob("learners.batch_size")] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any setting, e.g. pruning.method=snip."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="A TOML file with a [run] table.")
    ] = None,
    initial_weights: Annotated[
        Path | None,
        typer.Option(
            "--initial-weights",
            help="A file to start theta* from: safetensors, or a state dict by torch.save.",
        ),
    ] = None,
    new_head: Annotated[
        bool, typer.Option("--new-head", help=option_help(RunConfig, "initialization.new_head"))
    ] = False,
    freeze: Annotated[
        list[str] | None,
        typer.Option("--freeze", metavar="PATTERN", help=option_help(RunConfig, "learners.frozen")),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Follow the run to its end.")] = False,
    json: Json = False,
    coordinator: Coordinator,
) -> None:
    """Start a run.

    What is not given here or in --config is the coordinator's default.
    """
    from lipt.trainer.cli.overrides import collect_overrides, refusing_as_usage
    from lipt.trainer.client.sources import checkpoint_source

    with refusing_as_usage():
        overrides = collect_overrides(
            {
                "model": model,
                "seed": seed,
                "learners.num_learners": num_learners,
                "learners.num_steps": num_steps,
                "learners.batch_size": batch_size,
                "learners.frozen": freeze or None,
                "initialization.new_head": new_head or None,
            },
            assignments or [],
            config,
        )
    weights = None if initial_weights is None else checkpoint_source(initial_weights)
    with coordinator.connect() as client:
        if weights is not None:
            activity = f"uploading {initial_weights}"
            blob = run_talking(lambda _: client.upload_weights(weights), activity=activity)
            overrides.setdefault("initialization", {})["weights_sha256"] = blob.sha256
        run = client.start_run(overrides, name=name)
        told = [f"fitted to the data: {run.fitted}"] if run.fitted else []
        told += [run.note] if run.note else []
        if watch:
            for line in told if not json else ():
                say(line)
            _follow(client, run, as_json=json)
        else:
            lines = (
                f"run {run.label} ({run.run_id}) has started.",
                *told,
                f"Follow it with: lipt run watch {run.label}",
            )
            print_result(run, lines, as_json=json)


@app.command("list")
@grouped
def list_runs(
    *,
    json: Json = False,
    full: Annotated[
        bool, typer.Option("--full", help="With --json: every setting and cost of each run.")
    ] = False,
    coordinator: Coordinator,
) -> None:
    """List the coordinator's runs, newest first."""
    with coordinator.connect() as client:
        runs = client.runs()
    header = ("name", "id", "state", "model", "created", "soup", "message")
    rows = [
        (
            run.name or "-",
            run.run_id,
            run.state.value,
            run.config.model,
            f"{run.created_at.astimezone():%Y-%m-%d %H:%M:%S}" if run.created_at else "-",
            format_percent(run.soup.soup_accuracy) if run.soup else "-",
            run.message,
        )
        for run in runs
    ]
    nothing = ["There are no runs. Start one with: lipt run start"]
    listed = runs if full else [_in_short(run) for run in runs]
    print_result(listed, table_lines(header, rows) if runs else nothing, as_json=json)


def _in_short(run: RunView) -> dict[str, Any]:
    whole = {**vars(run), **vars(run.config)}
    names = ("run_id", "name", "state", "model", "seed", "created_at", "ended_at", "message")
    return {
        **{name: whole[name] for name in names},
        "soup_accuracy": run.soup and run.soup.soup_accuracy,
    }


@app.command()
@grouped
def show(run: RunArgument = "latest", *, json: Json = False, coordinator: Coordinator) -> None:
    """Show a run: its state, learners, soup and costs."""
    from lipt.trainer.cli.display.progress import run_lines

    with coordinator.connect() as client:
        view = client.run(run)
    print_result(view, run_lines(view), as_json=json)


@app.command()
@grouped
def watch(run: RunArgument = "latest", *, json: Json = False, coordinator: Coordinator) -> None:
    """Follow a run to its end; the status is 1 when it failed, was cancelled, or is held."""
    with coordinator.connect() as client:
        _follow(client, client.run(run), as_json=json)


@app.command()
@grouped
def cancel(run: RunArgument, *, json: Json = False, coordinator: Coordinator) -> None:
    """Stop a run; what it has made so far stays readable."""
    with coordinator.connect() as client:
        view = client.cancel(run)
    print_result(view, [f"run {view.label} is {view.state}."], as_json=json)


def _follow(client: Client, run: RunView, *, as_json: bool) -> None:
    from lipt.trainer.cli.display.follow import follow, left_lines, make_display

    try:
        latest = follow(client.watch(run.run_id), make_display(as_json=as_json)) or run
    except KeyboardInterrupt:
        for line in left_lines(run):
            say(line, err=True)
        raise typer.Exit(_INTERRUPTED) from None
    if latest.state != "ready":
        raise typer.Exit(1)
