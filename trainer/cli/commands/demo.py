"""`lipt demo`: the whole service on this machine, on real images."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from lipt.common.terminal import say
from lipt.trainer.cli.display.output import print_result
from lipt.trainer.cli.options import Json


def demonstrate(
    *,
    directory: Annotated[
        Path, typer.Option("--dir", help="Where results and logs are written.")
    ] = Path("lipt-demo"),
    workers: Annotated[
        int, typer.Option("--workers", min=1, max=64, help="How many worker processes.")
    ] = 3,
    json: Json = False,
) -> None:
    """Start a coordinator and workers here, diagnose the digits, and train on subsets of them."""
    import os

    from lipt.trainer.cli.demo.pipeline import run_demo
    from lipt.trainer.cli.display.follow import make_display

    # Before torch is loaded, here and in the children. Images of 8x8 gain nothing from a
    # second thread, which would only take the core that another process needs.
    os.environ["OMP_NUM_THREADS"] = "1"
    result = run_demo(
        directory,
        num_workers=workers,
        make_display=lambda: make_display(as_json=json),
        say=partial(say, err=json),
    )
    from lipt.trainer.cli.demo.experiment import report_lines  # imports torch

    print_result(result, report_lines(result), as_json=json)
