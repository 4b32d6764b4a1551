"""`lipt top`: runs, learners, workers and the queue, live on one screen."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from lipt.trainer.cli.arguments.groups import grouped
from lipt.trainer.cli.arguments.options import Coordinator, Json
from lipt.trainer.cli.display.output import print_json

if TYPE_CHECKING:
    from lipt.trainer.client.client import Client

_ONCE_WIDTH = 120


@grouped
def top(
    *,
    interval: Annotated[
        float, typer.Option("--interval", min=0.2, max=60.0, help="Seconds between two looks.")
    ] = 1.0,
    num_runs: Annotated[
        int, typer.Option("--runs", min=1, max=200, help="So many of the newest runs.")
    ] = 20,
    once: Annotated[bool, typer.Option("--once", help="Print how it stands now, and end.")] = False,
    json: Json = False,
    coordinator: Coordinator,
) -> None:
    """Watch the coordinator: its runs, their learners, the workers and the queue.

    Where standard output is no terminal, it is printed once. With --json an object is printed for
    every change, without end; with --once as well, a single one.
    """
    with coordinator.connect() as client:
        if json:
            for view in client.watch_service(interval_seconds=interval, num_runs=num_runs):
                print_json(view)
                if once:
                    return
        elif once or not sys.stdout.isatty():
            _print_once(client, num_runs)
        else:
            _watch(client, interval, num_runs)


def _print_once(client: Client, num_runs: int) -> None:
    from dataclasses import replace

    from lipt.trainer.cli.display.screen import Screen
    from lipt.trainer.cli.display.top.frame import render_once
    from lipt.trainer.cli.display.top.watching import first_scene

    view = next(iter(client.watch_service(num_runs=num_runs)))
    console = Screen() if sys.stdout.isatty() else Screen(width=_ONCE_WIDTH)
    scene = replace(first_scene(client.address), view=view)
    console.print(render_once(scene, width=console.width))


def _watch(client: Client, interval: float, num_runs: int) -> None:
    from lipt.trainer.cli.display.top.keys import reading_keys
    from lipt.trainer.cli.display.top.watching import Pump, first_scene, watch

    with reading_keys() as keys:
        pump = Pump(
            lambda on_pause: client.watch_service(
                interval_seconds=interval, num_runs=num_runs, on_pause=on_pause
            )
        )
        scene = first_scene(client.address)
        watch(scene, pump, keys, cancel=client.cancel, clock=time.monotonic)
