"""Output of commands: JSON for scripts, lines for people, and lines while slow work goes on."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from lipt.common.terminal import say, say_json
from lipt.common.terminal import say as say_line
from lipt.trainer.writing.formatting import to_jsonable

if TYPE_CHECKING:
    from lipt.common.data import Dataset
    from lipt.trainer.client.client import Client


def print_json(value: Any) -> None:
    """One JSON document on one line, keys in the order of the value's fields."""
    say_json(json.dumps(to_jsonable(value), ensure_ascii=False, allow_nan=False))


def print_result(value: Any, lines: Iterable[str], *, as_json: bool) -> None:
    """What a command has to show: the value for scripts, or the lines for people."""
    if as_json:
        print_json(value)
        return
    for line in lines:
        say(line)


SILENCE_SECONDS = 9.0
TICK_SECONDS = 0.5
# The name of the threads that do the work.
BACKGROUND = "lipt-background"

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

Say = Callable[[str], None]


def in_background(
    items: Iterable[ItemT], *, tick_seconds: float = TICK_SECONDS
) -> Iterator[ItemT | None]:
    """Consume items in a thread and yield them, or None whenever none came for a tick."""
    arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
    errors: list[BaseException] = []
    end = object()

    def pump() -> None:
        try:
            for item in items:
                arrived.put(item)
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            errors.append(error)
        arrived.put(end)

    # A daemon: Ctrl-C must not wait for a call that hangs.
    within = partial(copy_context().run, pump)
    threading.Thread(target=within, name=BACKGROUND, daemon=True).start()
    while True:
        try:
            item = arrived.get(timeout=tick_seconds)
        except queue.Empty:
            yield None
            continue
        if item is end:
            break
        yield item
    for error in errors:
        raise error


def run_talking(
    work: Callable[[Say], ResultT],
    say: Say = partial(say_line, err=True),
    *,
    activity: str = "working",
    silence_seconds: float = SILENCE_SECONDS,
) -> ResultT:
    """Do `work` and `say` its reports, from `activity` on, at least every `silence_seconds`."""
    reports: queue.SimpleQueue[str] = queue.SimpleQueue()
    results: list[ResultT] = []

    def items() -> Iterator[None]:
        results.append(work(reports.put))
        yield from ()

    latest, started, said = activity, time.monotonic(), time.monotonic()
    tick = min(TICK_SECONDS, silence_seconds)
    for _ in in_background(items(), tick_seconds=tick):
        while not reports.empty():
            latest = reports.get()
        now = time.monotonic()
        if now - said >= silence_seconds:
            say(f"{latest} ({now - started:.0f} s)")
            said = now
    return results[0]


@contextmanager
def leaving() -> Iterator[None]:
    """Let the block's exception end the process; at once where something goes on behind it.

    Python ends threads in the middle of what they do. Inside torch or gRPC that is the end of the
    whole process, "terminate called without an active exception", whatever status it had.
    """
    try:
        yield
    except BaseException as error:
        if not any(thread.name == BACKGROUND for thread in threading.enumerate()):
            raise
        status = _status(error)
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):  # who read it has gone
                stream.flush()
        os._exit(status)


def _status(error: BaseException) -> int:
    if not isinstance(error, SystemExit):
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code
    print(error.code, file=sys.stderr)  # noqa: T201 - as Python does
    return 1


def open_talking(
    source: str,
    *,
    image_size: int | None,
    modules: Collection[str],
    quarantined: tuple[int, ...] = (),
) -> Dataset:
    """A data set, read with a line on standard error whenever that takes long."""
    dataset = run_talking(lambda tell: open_telling(source, image_size, modules, tell, quarantined))
    if dataset.scaling:
        say(f"{source}: {dataset.scaling}", err=True)
    return dataset


def open_telling(
    source: str,
    image_size: int | None,
    modules: Collection[str],
    tell: Callable[[str], None],
    quarantined: tuple[int, ...] = (),
) -> Dataset:
    """As `open_talking`, for work that says itself how it goes."""
    from lipt.common.data import Bearable, open_dataset

    tell(f"reading {source}")
    return open_dataset(
        source,
        image_size=image_size,
        allowed_modules=modules,
        progress=lambda done, total: tell(f"reading {source}: {done} of {total}"),
        bearable=Bearable(known=quarantined),
    )


def left_out_by(client: Client) -> tuple[int, ...]:
    """The ids of the images that a coordinator leaves out of its data, as they are broken."""
    dataset = client.info().dataset
    return () if dataset is None else dataset.quarantined
