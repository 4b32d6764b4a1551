"""`lipt select`: a subset in one call, without a coordinator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lipt.cli import options as shared
from lipt.cli.commands.subset import SubsetFlags, prepared, save_and_print

app = typer.Typer(rich_markup_mode=None)


@app.command()
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
    model: shared.OwnModel = None,
    choice: SubsetFlags,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="A .npy, .csv or .json file; .jsonl for the rows.")
    ],
    local: shared.LocalRun,
    json: shared.Json = False,
) -> None:
    """Select the examples worth training on, without a coordinator.

    The whole pipeline runs in this process.
    """
    data = csv.name(data)
    asked = prepared(choice, out, data)
    keywords = local.keywords(data, model, *asked["target_data"] or ())
    from lipt.common.process import wait_passively

    wait_passively()
    from lipt.calls import select as select_here

    subset = select_here(data, model, target=target, **asked, **keywords)
    save_and_print(out, subset, data, as_json=json)
