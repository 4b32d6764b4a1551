"""Output of commands: JSON for scripts, lines for people, and progress of slow work."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from lipt.common.terminal import print_document, print_line
from lipt.trainer.formatting import to_jsonable
from lipt.trainer.progress import Show, progress_display
from lipt.trainer.views import ProgressView

if TYPE_CHECKING:
    from lipt.data.dataset import Dataset
    from lipt.trainer.client.client import Client
    from lipt.trainer.client.connection import Silence
    from lipt.trainer.main_training.records import EpochRecord, Progress


def print_json(value: Any) -> None:
    # Only ASCII, of which JSON leaves one unprintable character.
    document = json.dumps(to_jsonable(value), allow_nan=False).replace("\x7f", r"\u007f")
    print_document(f"{document}\n")


def print_result(value: Any, lines: Iterable[str], *, as_json: bool) -> None:
    if as_json:
        print_json(value)
        return
    for line in lines:
        print_line(line)


SILENCE_SECONDS, TICK_SECONDS = 9.0, 0.5
# The name of the threads that do the work.
BACKGROUND = "lipt-background"

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

PrintLine = Callable[[str], None]


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


class SignsOfLife:
    """Prints a line at least every `silence_seconds`, and when a coordinator is gone or back."""

    def __init__(
        self, print_line: PrintLine, now: float, silence_seconds: float = SILENCE_SECONDS
    ) -> None:
        self._print_line, self._silence_seconds = print_line, silence_seconds
        self._said_at = now
        self._silence: Silence | None = None

    def say(self, line: str, now: float) -> None:
        self._print_line(line)
        self._said_at = now

    def notice(self, now: float, silence: Silence | None) -> None:
        before, self._silence = self._silence, silence
        if silence is not None and before is None:
            self.say(str(silence), now)
        elif silence is None and before is not None:
            self.say(f"coordinator {before.address} answers again", now)

    def tick(self, now: float, line: Callable[[], str]) -> None:
        """Print `line()` where one is due, or that the coordinator is gone."""
        if now - self._said_at >= self._silence_seconds:
            self.say(line() if self._silence is None else str(self._silence), now)


def run_with_progress(
    work: Callable[[PrintLine], ResultT],
    print_line: PrintLine = partial(print_line, err=True),
    *,
    activity: str = "working",
    silence_seconds: float = SILENCE_SECONDS,
    silence: Callable[[], Silence | None] = lambda: None,
) -> ResultT:
    """Do `work`, and print its latest report, at first `activity`, every `silence_seconds`.

    `silence` is asked whether the coordinator that the work waits for is gone.
    """
    reports: queue.SimpleQueue[str] = queue.SimpleQueue()
    results: list[ResultT] = []

    def items() -> Iterator[None]:
        results.append(work(reports.put))
        yield from ()

    latest, started = activity, time.monotonic()
    signs = SignsOfLife(print_line, started, silence_seconds)

    def line() -> str:
        return f"{latest} ({time.monotonic() - started:.0f} s)"

    tick = min(TICK_SECONDS, silence_seconds)
    for _ in in_background(items(), tick_seconds=tick):
        while not reports.empty():
            latest = reports.get()
        now = time.monotonic()
        signs.notice(now, silence())
        signs.tick(now, line)
    return results[0]


@contextmanager
def process_exit() -> Iterator[None]:
    """Let the block's exception end the process, at once if a background thread still works.

    Python stops threads anywhere. In torch or gRPC that aborts the process, whatever its status.
    """
    try:
        yield
    except BaseException as error:
        if not any(thread.name == BACKGROUND for thread in threading.enumerate()):
            raise
        code: object = 1
        if isinstance(error, SystemExit):
            code = error.code or 0
        else:
            sys.excepthook(type(error), error, error.__traceback__)
        if not isinstance(code, int):
            print(code, file=sys.stderr)  # noqa: T201 - as Python does
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):  # the reader has closed it
                stream.flush()
        os._exit(code if isinstance(code, int) else 1)


def open_with_progress(
    source: str,
    *,
    image_size: int | None,
    modules: Collection[str],
    quarantined: tuple[int, ...] = (),
) -> Dataset:
    """Open a data set, with progress on standard error if that takes long."""
    from lipt.data.loading import open_dataset

    dataset = run_with_progress(
        lambda report: open_dataset(
            source,
            image_size=image_size,
            allowed_modules=modules,
            progress=lambda done, total: report(f"reading {source}: {done} of {total}"),
            quarantined=quarantined,
        ),
        activity=f"reading {source}",
    )
    if dataset.note:
        print_line(f"{source}: {dataset.note}", err=True)
    return dataset


def quarantined_by(client: Client) -> tuple[int, ...]:
    """The ids of the broken images that a coordinator excludes from its data."""
    dataset = client.info().dataset
    return () if dataset is None else dataset.quarantined


@contextmanager
def training_progress() -> Iterator[TrainingProgress]:
    """Progress of trainings, on a terminal with one line that moves."""
    if not sys.stderr.isatty():
        yield TrainingProgress()
        return
    with progress_display(shown=True) as show:
        yield TrainingProgress(show=show)


class TrainingProgress:
    def __init__(
        self,
        print_line: PrintLine = partial(print_line, err=True),
        clock: Callable[[], float] = time.monotonic,
        show: Show | None = None,
    ) -> None:
        self._print, self._clock, self._show = print_line, clock, show
        self._said = clock()
        self._measures = ""
        # Targets other than classes have another score.
        self.score_name = "accuracy"

    def on_step(self, step: int, num_steps: int) -> None:
        if self._show is not None:
            self._show(ProgressView("step", step, num_steps))
        elif self._clock() - self._said >= SILENCE_SECONDS:
            self.print_line(f"step {step}/{num_steps}{self._measures and ', '}{self._measures}")

    def on_epoch(self, record: EpochRecord) -> None:
        parts = [f"epoch {record.epoch}", f"loss {record.loss:.3f}"]
        parts.append(f"{self.score_name} {record.accuracy:.1%}")
        if record.test_accuracy is not None:
            parts.append(f"test {record.test_accuracy:.1%}")
        parts.append(f"{record.images_per_second:,.0f} examples/s")
        if record.seconds_left > 0:
            parts.append(f"{record.seconds_left:.0f} s left")
        self._measures = ", ".join(parts)
        if record.subset_accuracy is not None or record.step == record.num_steps:
            self.print_line(f"step {record.step}/{record.num_steps}, {self._measures}")

    def on_resume(self, resumed: Progress) -> None:
        where = f"step {resumed.step}/{resumed.num_steps}, epoch {resumed.epoch}"
        self.print_line(f"{where}, from the checkpoint")

    def print_line(self, line: str) -> None:
        self._said = self._clock()
        self._print(line)


@contextmanager
def warnings_as_lines(*kinds: type[Warning]) -> Iterator[None]:
    """Print warnings as lines without their source location, and repeat those of `kinds`."""
    with warnings.catch_warnings():
        for kind in kinds:
            warnings.simplefilter("always", kind)
        warnings.showwarning = lambda message, *_, **__: print_line(f"warning: {message}", err=True)
        yield
