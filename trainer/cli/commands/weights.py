"""`lipt weights get`: a run's weights as a safetensors file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lipt.common.sizes import format_bytes
from lipt.trainer.cli.arguments.groups import grouped
from lipt.trainer.cli.arguments.options import Coordinator, Json, Run
from lipt.trainer.cli.arguments.paths import require_replaceable
from lipt.trainer.cli.display.output import print_result
from lipt.trainer.cli.display.waiting import run_counting
from lipt.trainer.views import WEIGHTS_KINDS, WeightsKind

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Get a run's weights.")


@app.callback()
def weights() -> None:
    """Get a run's weights."""


@app.command()
@grouped
def get(
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="A .safetensors file to write.")],
    run: Run = "latest",
    kind: Annotated[
        str, typer.Option("--kind", help=f"Which weights: {WEIGHTS_KINDS}.")
    ] = WeightsKind.PRETRAINED.value,
    json: Json = False,
    coordinator: Coordinator,
) -> None:
    """Write a run's weights to a safetensors file."""
    if (found := WeightsKind.parse(kind)) is None:
        raise typer.BadParameter(f"{kind!r} is none of {WEIGHTS_KINDS}.", param_hint="--kind")
    require_replaceable(out)
    with coordinator.connect() as client:
        blob = run_counting(
            f"downloading the {found} weights of {run}",
            lambda on_bytes: client.save_weights(out, run, found, on_bytes=on_bytes),
        )
    written = {"path": out, "kind": found, **vars(blob)}
    line = f"{out}: {format_bytes(blob.size_bytes)}, sha256 {blob.sha256}"
    print_result(written, [line], as_json=json)
