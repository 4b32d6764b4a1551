"""`lipt plan` and `lipt select`: the library's calls on the command line, without a coordinator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from lipt.cli import options as shared
from lipt.cli.commands.subset import SubsetFlags, prepare, save_and_print
from lipt.common.config.knobs import option_help
from lipt.common.config.run_config import RunConfig
from lipt.trainer.views import DEFAULT_STRATEGY

plan_app = typer.Typer(rich_markup_mode=None)
select_app = typer.Typer(rich_markup_mode=None)
_LEARNERS = option_help(RunConfig, "learners.num_learners", show_default=False)

Model = Annotated[str | None, typer.Option(help="The model; else one that suits.")]
RunFile = Annotated[Path | None, typer.Option(help="A TOML file with a [run] table.")]


@plan_app.command()
def plan(
    data: Annotated[str, typer.Option(help="The data, as lipt-coordinator takes it.")],
    model: Model = None,
    strategy: Annotated[
        str, typer.Option("--strategy", "-s", help="Strategy that selects.")
    ] = DEFAULT_STRATEGY,
    fraction: shared.Fraction = None,
    budget: shared.Budget = None,
    option: shared.Options = None,
    balanced: Annotated[
        bool | None,
        typer.Option("--balanced/--no-balanced", help="Equal shares of the classes, or not."),
    ] = None,
    proxy: shared.Proxy = None,
    workers: Annotated[
        int, typer.Option(min=1, help="Workers that train at a time, each on cores of its own.")
    ] = 1,
    num_learners: Annotated[int | None, typer.Option(help=_LEARNERS)] = None,
    settings: shared.Settings = None,
    config: RunFile = None,
    image_size: shared.ImageSize = None,
    device: shared.Device = "auto",
    measure: Annotated[bool, typer.Option(help="Time a batch of each kind of work here.")] = True,
    allow_module: shared.AllowModule = None,
    json: shared.Json = False,
) -> None:
    """Estimate what a run and a subset cost, before anything runs.

    Images, bytes and memory are counted; seconds come from one batch each of training, evaluation
    and scoring on this machine. No coordinator is needed; only the data's index is kept.
    """
    from lipt.cli.output import PrintLine, print_result, run_with_progress
    from lipt.plan import Estimate, estimate, lines_of
    from lipt.pretraining import Pretrained

    flags = {"learners.num_learners": num_learners}
    run = shared.collect_overrides(flags, settings, config)
    options = shared.parse_options(option)
    asked: Any = {"budget": budget, "balanced": balanced, "options": options, "proxy": proxy}
    where: Any = {"device": device, "allow_modules": shared.modules_of(allow_module, data, model)}

    def work(report: PrintLine) -> Estimate:
        report(f"opening {data}")
        opened = Pretrained(data, model, run=run, image_size=image_size, progress=False, **where)
        request = opened.resolve(strategy, fraction, **asked)
        return estimate(opened, request, num_workers=workers, timed=measure, report=report)

    found = run_with_progress(work)
    print_result(found, lines_of(found), as_json=json)


@select_app.command()
@shared.grouped
def select(
    *,
    data: Annotated[
        str,
        typer.Argument(
            help="The data: csv:PATH?label=COLUMN, imagefolder:PATH; a table's file with --target."
        ),
    ],
    target: Annotated[str | None, typer.Option(help="The table's column to predict.")] = None,
    csv: shared.CsvFile,
    model: Model = None,
    choice: SubsetFlags,
    out: Annotated[Path, typer.Option("--out", "-o", help="A .npy, .csv or .json file.")],
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    settings: shared.Settings = None,
    config: RunFile = None,
    image_size: shared.ImageSize = None,
    device: shared.Device = "auto",
    allow_module: shared.AllowModule = None,
    json: shared.Json = False,
) -> None:
    """Select the examples worth training on, without a coordinator.

    The whole pipeline runs in this process.
    """
    asked: dict[str, Any] = {**vars(choice), "options": prepare(choice, out)}
    run = shared.collect_overrides({}, settings, config)
    from lipt.common.process import wait_passively

    wait_passively()
    from lipt.calls import select as select_here

    data = csv.name(data)
    modules = shared.modules_of(allow_module, data, model)
    where: dict[str, Any] = {"image_size": image_size, "device": device, "allow_modules": modules}
    where["target"] = target
    save_and_print(
        out, select_here(data, model, seed=seed, run=run, **asked, **where), as_json=json
    )
