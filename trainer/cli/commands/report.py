"""`lipt report` and `lipt track`: a run as an HTML file, and as an entry of a tracker."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lipt.common.terminal import say
from lipt.trainer.cli.display.output import print_result, run_talking
from lipt.trainer.cli.options import (
    AllowModule,
    Coordinator,
    Json,
    RunArgument,
    grouped,
    modules_of,
    require_apart,
    require_replaceable,
)
from lipt.trainer.views import DEFAULT_STRATEGY

if TYPE_CHECKING:
    from lipt.trainer.client.client import Client
    from lipt.trainer.diagnosis.diagnosis import Diagnosis
    from lipt.trainer.report.report import Report
    from lipt.trainer.subsets.subset import Subset
    from lipt.trainer.views import RunView


def _share(fraction: float) -> float:
    if not 0 < fraction <= 1:
        raise typer.BadParameter(f"{fraction} is not in (0, 1], e.g. 0.1", param_hint="--fraction")
    return fraction


_Strategies = Annotated[
    str, typer.Option(help="Strategies whose subsets go along, with commas between them.")
]
_Fraction = Annotated[
    float,
    typer.Option("--fraction", "-f", callback=_share, help="Share of the data set that they keep."),
]
_Comparison = Annotated[
    Path | None, typer.Option(help="The file that 'lipt compare' wrote, to go along.")
]


@grouped
def report(
    run: RunArgument = "latest",
    *,
    data: Annotated[str, typer.Option(help="The coordinator's data, opened here for pictures.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")] = Path(
        "report.html"
    ),
    strategies: _Strategies = DEFAULT_STRATEGY,
    fraction: _Fraction = 0.1,
    comparison: _Comparison = None,
    diagnosis: Annotated[
        bool,
        typer.Option(
            help="Whether suspects of the diagnosis are shown; the first time it is computed."
        ),
    ] = True,
    allow_module: AllowModule = None,
    coordinator: Coordinator,
) -> None:
    """Write a run's report: the verdict, its costs, the soup, and what was chosen."""
    from lipt.trainer.cli.display.output import left_out_by, open_telling
    from lipt.trainer.cli.overrides import parse_names, refusing_as_usage
    from lipt.trainer.comparison.table import verdict
    from lipt.trainer.comparison.trial import read_trials
    from lipt.trainer.report.report import gather, render
    from lipt.trainer.writing.files import write_atomically

    with refusing_as_usage():
        names = parse_names(strategies)
    require_replaceable(out)
    require_apart({"--comparison": comparison, "--out": out})
    found = None if comparison is None else read_trials(comparison)
    with coordinator.connect() as client:

        def work(tell: Callable[[str], None]) -> Report:
            modules = modules_of(allow_module, data)
            dataset = open_telling(data, None, modules, tell, left_out_by(client))
            view = client.wait(client.ready_run(run).run_id)
            diagnosed = _diagnosis(client, tell) if diagnosis else None
            tell("gathering the report")
            return gather(
                client,
                view,
                dataset,
                [(name, fraction) for name in names],
                found,
                diagnosis=diagnosed,
                allowed_modules=modules,
                now=datetime.now(UTC),
            )

        gathered = run_talking(work)
    write_atomically(out, render(gathered).encode())
    say(f"{out}: run {gathered.run.label}, {', '.join(names)}")
    for line in verdict(gathered.outcomes).splitlines():
        say(line)


def _diagnosis(client: Client, tell: Callable[[str], None]) -> Diagnosis | None:
    from lipt.common.errors import InputError, RequestError

    try:
        return client.diagnose(on_progress=lambda progress: tell(f"diagnosis: {progress}"))
    except (RequestError, InputError) as error:
        say(f"without a diagnosis: {error}", err=True)
        return None


@grouped
def track(
    run: RunArgument = "latest",
    *,
    mlflow: Annotated[
        str | None,
        typer.Option(metavar="EXPERIMENT", help="Log to MLflow (MLFLOW_TRACKING_URI)."),
    ] = None,
    wandb: Annotated[
        str | None,
        typer.Option(metavar="PROJECT", help="Log to Weights & Biases (WANDB_MODE)."),
    ] = None,
    strategies: _Strategies = DEFAULT_STRATEGY,
    fraction: _Fraction = 0.1,
    report: Annotated[
        Path | None, typer.Option(help="The page that 'lipt report' wrote, to go along.")
    ] = None,
    comparison: _Comparison = None,
    json: Json = False,
    coordinator: Coordinator,
) -> None:
    """Log a run with its settings, its soup, its costs and its subsets to a tracker.

    A model that was trained on one of these subsets leads back here: `lipt train --mlflow` and
    `--wandb` log the subset's digest, and every subset's digest stands with this run.
    """
    from lipt.common.imports import require_extra
    from lipt.trainer.cli.overrides import parse_names, refusing_as_usage
    from lipt.trainer.comparison.trial import read_trials
    from lipt.trainer.tracking import track as log_run

    targets = {"mlflow": mlflow, "wandb": wandb}
    if not any(targets.values()):
        raise typer.BadParameter("give --mlflow EXPERIMENT, --wandb PROJECT, or both")
    for name, package in (("mlflow", "mlflow-skinny"), ("wandb", "wandb")):
        if targets[name]:
            require_extra(name, package=package, extra="loggers", needed_for=f"--{name}")
    with refusing_as_usage():
        names = parse_names(strategies)
    trials = [] if comparison is None else read_trials(comparison)[1]
    files = {file.name: file.read_text() for file in (report, comparison) if file is not None}
    with coordinator.connect() as client:

        def gather(_: object) -> tuple[RunView, list[Subset]]:
            view = client.wait(client.ready_run(run).run_id)
            return view, [client.subset(view.run_id, name, fraction=fraction) for name in names]

        view, subsets = run_talking(gather)
    logged = {
        name: log_run(name, target, view, subsets, files=files, trials=trials)
        for name, target in targets.items()
        if target
    }
    lines = [f"run {view.label} is run {logged[name]} of {name}" for name in logged]
    lines += [f"with subset {one.digest}" for one in subsets]
    tags = [one.tags for one in subsets]
    print_result({"run": view.label, "logged": logged, "subsets": tags}, lines, as_json=json)
