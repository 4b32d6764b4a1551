"""`lipt track`: a run and its subsets in an experiment tracker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lipt.trainer.cli.arguments.groups import grouped
from lipt.trainer.cli.arguments.options import Coordinator, Json, RunArgument
from lipt.trainer.cli.display.output import print_result
from lipt.trainer.cli.display.waiting import run_talking
from lipt.trainer.views import DEFAULT_STRATEGY

if TYPE_CHECKING:
    from lipt.trainer.tracking.account import Account


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
    strategies: Annotated[
        str, typer.Option(help="Strategies whose subsets go along, with commas between them.")
    ] = DEFAULT_STRATEGY,
    fraction: Annotated[
        float, typer.Option("--fraction", "-f", help="Share of the data set that they keep.")
    ] = 0.1,
    report: Annotated[
        Path | None, typer.Option(help="The page that 'lipt report' wrote, to go along.")
    ] = None,
    comparison: Annotated[
        Path | None, typer.Option(help="The file that 'lipt compare' wrote, to go along.")
    ] = None,
    json: Json = False,
    coordinator: Coordinator,
) -> None:
    """Log a run with its settings, its soup, its costs and its subsets to a tracker.

    A model that was trained on one of these subsets leads back here: `lipt train --mlflow` and
    `--wandb` log the subset's digest, and every subset's digest stands with this run.
    """
    from lipt.common.imports import require_extra
    from lipt.trainer.cli.arguments.overrides import parse_names, refusing_as_usage
    from lipt.trainer.comparison.trial import read_trials
    from lipt.trainer.tracking.account import account_of
    from lipt.trainer.tracking.mlflow import to_mlflow
    from lipt.trainer.tracking.wandb import to_wandb

    if not 0 < fraction <= 1:
        raise typer.BadParameter(f"{fraction} is not in (0, 1], e.g. 0.1", param_hint="--fraction")
    if mlflow is None and wandb is None:
        raise typer.BadParameter("give --mlflow EXPERIMENT, --wandb PROJECT, or both")
    for name, package, asked in (("mlflow", "mlflow-skinny", mlflow), ("wandb", "wandb", wandb)):
        if asked is not None:
            require_extra(name, package=package, extra="loggers", needed_for=f"--{name}")
    with refusing_as_usage():
        names = parse_names(strategies)
    trials = [] if comparison is None else read_trials(comparison)[1]
    files = {file.name: file.read_bytes() for file in (report, comparison) if file is not None}
    with coordinator.connect() as client:

        def gather(tell: object) -> Account:  # noqa: ARG001 - what it does is said by the client
            view = client.wait(client.ready_run(run).run_id)
            subsets = [client.subset(view.run_id, name, fraction=fraction) for name in names]
            return account_of(view, subsets, files=files, trials=trials)

        account = run_talking(gather)
    logged = {}
    if mlflow is not None:
        logged["mlflow"] = to_mlflow(account, mlflow)
    if wandb is not None:
        logged["wandb"] = to_wandb(account, wandb)
    lines = [f"run {account.name} is run {logged[name]} of {name}" for name in logged]
    lines += [f"with subset {one.tags['lipt.subset_digest']}" for one in account.subsets]
    tags = [one.tags for one in account.subsets]
    print_result({"run": account.name, "logged": logged, "subsets": tags}, lines, as_json=json)
