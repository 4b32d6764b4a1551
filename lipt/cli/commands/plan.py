"""`lipt plan`: what a run and a subset cost, before anything runs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lipt.cli import options as shared
from lipt.common.config.knobs import option_help
from lipt.common.config.run_config import RunConfig
from lipt.trainer.views import DEFAULT_STRATEGY

app = typer.Typer(rich_markup_mode=None)
_LEARNERS = option_help(RunConfig, "learners.num_learners", show_default=False)


@app.command()
def plan(
    data: Annotated[str, typer.Option(help="The data, as lipt-coordinator takes it.")],
    model: shared.OwnModel = None,
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
    config: shared.RunFile = None,
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
