"""`lipt plan`: bytes, seconds and memory of every stage, told before anything runs.

The `lipt` command finds it through the entry point group `lipt.commands`: it needs the worker's
part and the coordinator's, which the trainer's own commands do not import.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from lipt.common.config.knobs import option_help
from lipt.common.config.run_config import RunConfig
from lipt.trainer.cli.arguments.options import AllowModule, Budget, ImageSize, Json, Options, Proxy
from lipt.trainer.views import DEFAULT_STRATEGY

app = typer.Typer(rich_markup_mode=None)


@app.command()
def plan(
    data: Annotated[str, typer.Option(help="The data, as lipt-coordinator --data takes it.")],
    model: Annotated[
        str | None,
        typer.Option(help="The model, as lipt-coordinator --model takes it; else one that suits."),
    ] = None,
    strategy: Annotated[
        str, typer.Option("--strategy", "-s", help="What is to choose.")
    ] = DEFAULT_STRATEGY,
    fraction: Annotated[
        float, typer.Option("--fraction", "-f", help="Share of the data set to keep, in (0, 1].")
    ] = 0.1,
    budget: Budget = None,
    option: Options = None,
    balanced: Annotated[
        bool | None,
        typer.Option("--balanced/--no-balanced", help="Equal shares of the classes, or not."),
    ] = None,
    proxy: Proxy = None,
    workers: Annotated[
        int, typer.Option("--workers", min=1, help="Workers that train at a time, on this machine.")
    ] = 1,
    num_learners: Annotated[
        int | None,
        typer.Option(help=option_help(RunConfig, "learners.num_learners", show_default=False)),
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any setting of the run; repeatable."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="A TOML file with a [run] table.")
    ] = None,
    image_size: ImageSize = None,
    device: Annotated[
        str, typer.Option(help="What is computed on: auto, cpu, cuda, or cuda:N.")
    ] = "auto",
    measure: Annotated[
        bool,
        typer.Option(
            "--measure/--no-measure",
            help="Do a few seconds of the work here to tell how long all of it takes, or count it.",
        ),
    ] = True,
    allow_module: AllowModule = None,
    json: Json = False,
) -> None:
    """Tell what a run and a subset will cost here, by stage, before anything runs.

    Images, bytes and memory are counted; seconds come of a few pieces of the work that are done
    on this machine. No coordinator is needed, and nothing is kept but the data's index.
    """
    from lipt.estimates.planning import Question
    from lipt.estimates.planning import plan as make_plan
    from lipt.estimates.table import lines_of, print_estimate
    from lipt.trainer.cli.arguments.options import modules_of
    from lipt.trainer.cli.arguments.overrides import (
        collect_overrides,
        parse_options,
        refusing_as_usage,
    )
    from lipt.trainer.cli.display.output import print_result
    from lipt.trainer.cli.display.waiting import run_talking

    with refusing_as_usage():
        overrides = collect_overrides(
            {"learners.num_learners": num_learners}, assignments or [], config
        )
        options = parse_options(option or [])
    question = Question(
        data,
        model,
        overrides,
        strategy=strategy,
        options=options,
        fraction=fraction,
        budget=budget,
        balanced=balanced,
        proxy=proxy,
        num_workers=workers,
        image_size=image_size,
        device=device,
        allow_modules=modules_of(allow_module, data, model),
    )
    found = run_talking(lambda tell: make_plan(question, measure=measure, tell=tell))
    if sys.stdout.isatty() and not json:
        print_estimate(found)
    else:
        print_result(found, lines_of(found), as_json=json)
