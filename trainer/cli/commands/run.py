"""`lipt run`: start, list, show, watch and cancel runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Exit, Option, Typer

from lipt.common.config.knobs import option_help
from lipt.common.config.run_config import RunConfig
from lipt.common.terminal import print_line
from lipt.trainer.cli import options as shared
from lipt.trainer.cli.display.output import print_result, run_with_progress
from lipt.trainer.formatting import format_percent, table_lines

if TYPE_CHECKING:
    from lipt.trainer.client.client import Client
    from lipt.trainer.views import RunView

app = Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Start, list, show, watch and cancel runs."
)


def _knob(name: str) -> Any:
    # Other settings are the coordinator's defaults, which may be another version's.
    return Option(None, help=option_help(RunConfig, name, show_default=False))


@app.command()
@shared.grouped
def start(
    *,
    name: str = Option("", help="A name to find the run by."),
    model: str | None = _knob("model"),
    seed: int | None = _knob("seed"),
    num_learners: int | None = _knob("learners.num_learners"),
    num_steps: int | None = _knob("learners.num_steps"),
    batch_size: int | None = _knob("learners.batch_size"),
    assignments: shared.Settings = None,
    config: Path | None = Option(None, help="A TOML file with a [run] table."),
    preset: str | None = Option(
        None, help="Settings by one name: paper, the paper's own. Others given here win."
    ),
    initial_weights: Path | None = Option(
        None, help="A file to start theta* from: safetensors, or a state dict by torch.save."
    ),
    new_head: bool = Option(
        False, "--new-head", help=option_help(RunConfig, "initialization.new_head")
    ),
    freeze: list[str] | None = Option(
        None, metavar="PATTERN", help=option_help(RunConfig, "learners.frozen")
    ),
    watch: bool = Option(False, "--watch", help="Follow the run to its end."),
    json: shared.Json = False,
    coordinator: shared.Coordinator,
) -> None:
    """Start a run.

    Settings that are not given here, in --config or by --preset are the coordinator's defaults.
    """
    from lipt.trainer.client.sources import weights_source

    flags = {
        "model": model,
        "seed": seed,
        "learners.num_learners": num_learners,
        "learners.num_steps": num_steps,
        "learners.batch_size": batch_size,
        "learners.frozen": freeze or None,
        "initialization.new_head": new_head or None,
    }
    overrides = shared.collect_overrides(flags, assignments, config, preset)
    weights = None if initial_weights is None else weights_source(initial_weights)
    with coordinator.connect() as client:
        if weights is not None:
            activity = f"uploading {initial_weights}"
            blob = run_with_progress(lambda _: client.upload_weights(weights), activity=activity)
            overrides.setdefault("initialization", {})["weights_sha256"] = blob.sha256
        run = client.start_run(overrides, name=name)
        told = [f"fitted to the data: {run.lowered_defaults}"] if run.lowered_defaults else []
        told += [run.initialization_note] if run.initialization_note else []
        if not watch:
            begun = f"run {run.label} ({run.run_id}) has started."
            follow = f"Follow it with: lipt run watch {run.label}"
            print_result(run, [begun, *told, follow], as_json=json)
            return
        for line in told if not json else ():
            print_line(line)
        _follow(client, run, as_json=json)


@app.command("list")
@shared.grouped
def list_runs(*, json: shared.Json = False, coordinator: shared.Coordinator) -> None:
    """List the coordinator's runs, newest first."""
    with coordinator.connect() as client:
        runs = client.runs()
    header = ("name", "id", "state", "model", "created", "soup", "message")
    rows = []
    for run in runs:
        created = f"{run.created_at.astimezone():%Y-%m-%d %H:%M:%S}" if run.created_at else "-"
        soup = format_percent(run.soup.soup_accuracy) if run.soup else "-"
        named = (run.name or "-", run.run_id, run.state.value, run.config.model)
        rows.append((*named, created, soup, run.message))
    nothing = ["There are no runs. Start one with: lipt run start"]
    listed = [_in_short(run) for run in runs]
    print_result(listed, table_lines(header, rows) if runs else nothing, as_json=json)


def _in_short(run: RunView) -> dict[str, Any]:
    whole = {**vars(run), **vars(run.config)}
    names = ("run_id", "name", "state", "model", "seed", "created_at", "ended_at", "message")
    soup_accuracy = run.soup and run.soup.soup_accuracy
    return {name: whole[name] for name in names} | {"soup_accuracy": soup_accuracy}


@app.command()
@shared.grouped
def show(
    run: shared.RunArgument = "latest",
    *,
    json: shared.Json = False,
    coordinator: shared.Coordinator,
) -> None:
    """Show a run: its state, learners, soup and costs."""
    from lipt.trainer.cli.display.runs import run_lines

    with coordinator.connect() as client:
        view = client.run(run)
    print_result(view, run_lines(view), as_json=json)


@app.command()
@shared.grouped
def watch(
    run: shared.RunArgument = "latest",
    *,
    json: shared.Json = False,
    coordinator: shared.Coordinator,
) -> None:
    """Follow a run to its end; the status is 1 when it failed, was cancelled, or is held."""
    with coordinator.connect() as client:
        _follow(client, client.run(run), as_json=json)


@app.command()
@shared.grouped
def cancel(
    run: shared.RunArgument, *, json: shared.Json = False, coordinator: shared.Coordinator
) -> None:
    """Stop a run; its results so far stay readable."""
    with coordinator.connect() as client:
        view = client.cancel(run)
    print_result(view, [f"run {view.label} is {view.state}."], as_json=json)


def _follow(client: Client, run: RunView, *, as_json: bool) -> None:
    from lipt.trainer.cli.display.runs import follow

    try:
        latest = follow(client.watch(run.run_id), as_json=as_json) or run
    except KeyboardInterrupt:
        print_line(f"run {run.label} continues without this command.", err=True)
        print_line(f"Follow it again with: lipt run watch {run.label}", err=True)
        print_line(f"End it with: lipt run cancel {run.label}", err=True)
        raise Exit(130) from None  # 128 and the number of the signal, as shells have it
    if latest.state != "ready":
        raise Exit(1)
