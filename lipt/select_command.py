"""`lipt select`: the library's call on the command line, without a coordinator.

It is an entry point of `lipt.commands`, because the trainer must not import the coordinator.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from lipt.trainer.cli import options as shared
from lipt.trainer.cli.commands.subset import Choice, prepare, written

app = typer.Typer(rich_markup_mode=None)


@app.command()
@shared.grouped
def select(
    *,
    data: Annotated[str, typer.Argument(help="The data: csv:PATH?label=COLUMN, imagefolder:PATH.")],
    model: Annotated[str | None, typer.Option(help="The model; else one that suits.")] = None,
    choice: Choice,
    out: Annotated[Path, typer.Option("--out", "-o", help="A .npy, .csv, .json or .parquet file.")],
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any setting of the run; repeatable."),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file with a [run] table.")] = None,
    image_size: shared.ImageSize = None,
    device: shared.Device = "auto",
    allow_module: shared.AllowModule = None,
    json: shared.Json = False,
) -> None:
    """Select the examples worth training on: the whole pipeline, in this process."""
    asked: dict[str, Any] = {**vars(choice), "options": prepare(choice, out)}
    run = shared.collect_overrides({}, settings, config)
    from lipt.common.process.machine import wait_passively

    wait_passively()
    from lipt.calls import select as select_here

    modules = shared.modules_of(allow_module, data, model)
    where: dict[str, Any] = {"image_size": image_size, "device": device, "allow_modules": modules}
    written(out, select_here(data, model, seed=seed, run=run, **asked, **where), as_json=json)
