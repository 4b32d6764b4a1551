"""Progress of a call: a bar in a notebook or terminal, else a line every ten seconds."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from time import monotonic
from typing import Any

from lipt.common.terminal import print_line
from lipt.common.text import printable
from lipt.trainer.views import ProgressView

Show = Callable[[ProgressView], None]

_SILENCE_SECONDS = 10.0


@contextmanager
def showing(*, asked: bool | None) -> Iterator[Show]:
    """Show progress during the block; `asked` False shows nothing, True lines at once."""
    shell = sys.modules.get("IPython")
    cell = shell.get_ipython() if shell is not None else None
    if asked is False:
        yield lambda _: None
    elif hasattr(cell, "kernel"):
        yield from _in_notebook()
    elif sys.stderr.isatty():
        yield from _on_terminal()
    else:
        yield _in_lines(0.0 if asked else _SILENCE_SECONDS)


def as_html(progress: ProgressView) -> str:
    """Format a bar and its text."""
    share = f" value='{progress.done}' max='{progress.total}'" if progress.total else ""
    return f"<progress{share}></progress> {escape(_text(progress))}"


def _text(progress: ProgressView) -> str:
    # A run's line contains its own count.
    return progress.activity if progress.activity.startswith("run ") else str(progress)


def _in_notebook() -> Iterator[Show]:
    ipython: Any = importlib.import_module("IPython.display")
    html = ipython.HTML
    display = ipython.display(html("<progress></progress>"), display_id=True)
    try:
        yield lambda progress: display.update(html(as_html(progress)))
    finally:
        display.update(html(""))


def _on_terminal() -> Iterator[Show]:
    from rich.console import Console  # noqa: PLC0415, TID251 - for text without markup
    from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415 - takes 40 ms

    columns = BarColumn(), TextColumn("{task.fields[text]}", markup=False)
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, text="starting")

        def show(progress: ProgressView) -> None:
            total = progress.total or None
            bar.update(task, completed=progress.done, total=total, text=printable(_text(progress)))

        yield show


def _in_lines(silence_seconds: float) -> Show:
    said = monotonic()

    def show(progress: ProgressView) -> None:
        nonlocal said
        if monotonic() - said >= silence_seconds:
            said = monotonic()
            print_line(f"lipt: {_text(progress)}", err=True)

    return show
