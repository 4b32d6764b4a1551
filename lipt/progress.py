"""Showing how far a call is: a bar in a notebook or on a terminal, else a line now and then.

In a notebook it is a cell's own HTML, which needs no widgets. A program whose output goes to a
file hears nothing of what is done in a moment, and a line every ten seconds of what takes longer.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from time import monotonic
from typing import Any

from lipt.common.terminal import say
from lipt.trainer.cli.display.screen import Screen, styled
from lipt.trainer.views import ProgressView

# Text, and how much is done of how much: a total of 0 is not known.
Show = Callable[[ProgressView], None]

_SILENCE_SECONDS = 10.0


@contextmanager
def showing(*, asked: bool | None) -> Iterator[Show]:
    """Show what is done during the block, and take the bar away at its end.

    Args:
        asked: False for nothing at all; None and True show, where True also does so in
            lines from the first second on.
    """
    if asked is False:
        yield lambda _: None
    elif (display := _notebook_display()) is not None:
        yield from _in_notebook(display)
    elif sys.stderr.isatty():
        yield from _on_terminal()
    else:
        yield _in_lines(0.0 if asked else _SILENCE_SECONDS)


def as_html(progress: ProgressView) -> str:
    """A bar and its text."""
    share = f" value='{progress.done}' max='{progress.total}'" if progress.total else ""
    return f"<progress{share}></progress> {escape(_text(progress))}"


def _text(progress: ProgressView) -> str:
    # A run's line says by itself how far it is.
    return progress.activity if progress.activity.startswith("run ") else str(progress)


def _notebook_display() -> Any:
    """A place in the present cell's output; None where there is no notebook."""
    shell = sys.modules.get("IPython")
    running = shell.get_ipython() if shell is not None else None
    if running is None or not hasattr(running, "kernel"):
        return None
    ipython: Any = importlib.import_module("IPython.display")
    return ipython.display(ipython.HTML("<progress></progress>"), display_id=True)


def _in_notebook(display: Any) -> Iterator[Show]:
    html: Any = importlib.import_module("IPython.display").HTML
    try:
        yield lambda progress: display.update(html(as_html(progress)))
    finally:
        display.update(html(""))


def _on_terminal() -> Iterator[Show]:
    from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415 - takes 40 ms

    columns = BarColumn(), TextColumn("{task.fields[text]}")
    with Progress(*columns, console=Screen(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, text="starting")

        def show(progress: ProgressView) -> None:
            total = progress.total or None
            bar.update(task, completed=progress.done, total=total, text=styled(_text(progress)))

        yield show


def _in_lines(silence_seconds: float) -> Show:
    said = monotonic()

    def show(progress: ProgressView) -> None:
        nonlocal said
        if monotonic() - said >= silence_seconds:
            said = monotonic()
            say(f"lipt: {_text(progress)}", err=True)

    return show
