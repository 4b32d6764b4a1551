"""`lipt report` and `lipt track`: a run as an HTML file, and as an entry of a tracker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import BadParameter, Option

from lipt.cli import options as shared
from lipt.cli.output import open_with_progress, print_result, quarantined_by
from lipt.common.terminal import print_line
from lipt.trainer.views import DEFAULT_STRATEGY

_Strategies = Annotated[str, Option(help="Strategies of the subsets, with commas between them.")]
_Fraction = Annotated[
    float, Option("--fraction", "-f", min=0, max=1, help="Share of the data that they keep.")
]
_Comparison = Annotated[Path | None, Option(help="The file of 'lipt compare', to go along.")]


@shared.grouped
def report(
    run: shared.RunArgument = "latest",
    *,
    data: str | None = Option(
        None,
        help="The coordinator's data, opened here for pictures; without it the page is of "
        "--comparison alone, and no coordinator is needed.",
    ),
    out: Path = Option("report.html", "--out", "-o", help="The file to write."),
    strategies: _Strategies = DEFAULT_STRATEGY,
    fraction: _Fraction = 0.1,
    comparison: _Comparison = None,
    mixture: Path | None = Option(None, help="A saved mixture, to go along."),
    diagnosis: bool = Option(True, help="Whether to show suspects of the diagnosis."),
    allow_module: shared.AllowModule = None,
    coordinator: shared.Coordinator,
) -> None:
    """Write a run's verdict, costs, soup and subsets as an HTML file."""
    from lipt.common.errors import InputError, RequestError
    from lipt.data.targets.kinds import TargetKind
    from lipt.trainer.comparison.outcomes import outcomes
    from lipt.trainer.comparison.trial import read_trials
    from lipt.trainer.comparison.verdict import verdict
    from lipt.trainer.files import write_atomically
    from lipt.trainer.mixture import Mixture
    from lipt.trainer.report.report import render, render_comparison

    names = shared.parse_names(strategies)
    shared.require_replaceable(out)
    shared.require_apart({"--comparison": comparison, "--mixture": mixture, "--out": out})
    compared = None if comparison is None else read_trials(comparison)
    mixed = None if mixture is None else Mixture.load(mixture)
    sentences = verdict(outcomes(compared[1] if compared else [])).splitlines()
    if data is None:
        if compared is None or mixed is not None:
            raise BadParameter("give --data, or --comparison alone for a page without a run")
        write_atomically(out, render_comparison(compared).encode())
        for line in (f"{out}: {comparison}", *sentences):
            print_line(line)
        return
    modules = shared.modules_of(allow_module, data)
    with coordinator.connect() as client:
        bad = quarantined_by(client)
        dataset = open_with_progress(data, image_size=None, modules=modules, quarantined=bad)

        view = client.wait(client.ready_run(run).run_id)
        diagnosed = None
        # Wrong completions are no labels: `lipt diagnose` has a page of them.
        if diagnosis and dataset.target.kind is not TargetKind.TOKENS:
            try:
                diagnosed = client.diagnose()
            except (RequestError, InputError) as error:
                print_line(f"without a diagnosis: {error}", err=True)
        shown = (view, dataset, names, fraction, compared)
        page = render(client, *shown, diagnosis=diagnosed, mixture=mixed)
    write_atomically(out, page.encode())
    for line in (f"{out}: run {view.label}, {', '.join(names)}", *sentences):
        print_line(line)


@shared.grouped
def track(
    run: shared.RunArgument = "latest",
    *,
    mlflow: str | None = Option(
        None, metavar="EXPERIMENT", help="Log to MLflow (MLFLOW_TRACKING_URI)."
    ),
    wandb: str | None = Option(
        None, metavar="PROJECT", help="Log to Weights & Biases (WANDB_MODE)."
    ),
    strategies: _Strategies = DEFAULT_STRATEGY,
    fraction: _Fraction = 0.1,
    report: Path | None = Option(None, help="The page of 'lipt report', to go along."),
    comparison: _Comparison = None,
    json: shared.Json = False,
    coordinator: shared.Coordinator,
) -> None:
    """Log a run and its subsets in an experiment tracker.

    That includes its settings, its soup and its costs. A model that was trained on one of these
    subsets leads back here: `lipt train --mlflow` and `--wandb` log the subset's digest, and every
    subset's digest stands with this run.
    """
    from lipt.trainer.tracking import require_trackers
    from lipt.trainer.tracking import track as log_run

    given = {"mlflow": mlflow, "wandb": wandb}
    targets = {name: target for name, target in given.items() if target}
    if not targets:
        raise BadParameter("give --mlflow EXPERIMENT, --wandb PROJECT, or both")
    require_trackers(targets)
    names = shared.parse_names(strategies)
    files = {file.name: file.read_text() for file in (report, comparison) if file is not None}
    with coordinator.connect() as client:
        view = client.wait(client.ready_run(run).run_id)
        subsets = [client.subset(view.run_id, name, fraction=fraction) for name in names]
    logged = {
        name: log_run(name, target, view, subsets, files=files) for name, target in targets.items()
    }
    lines = [f"run {view.label} is run {logged[name]} of {name}" for name in logged]
    lines += [f"with subset {subset.digest}" for subset in subsets]
    tags = [subset.tags for subset in subsets]
    print_result({"run": view.label, "logged": logged, "subsets": tags}, lines, as_json=json)
