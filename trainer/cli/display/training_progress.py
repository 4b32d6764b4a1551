"""Progress of main training: a bar with its measures; without a terminal, a line now and then."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, Self

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar

from lipt.common.terminal import say as say_line
from lipt.trainer.cli.display.output import SILENCE_SECONDS
from lipt.trainer.cli.display.screen import Screen
from lipt.trainer.main_training.records import EpochRecord, Progress
from lipt.trainer.writing.formatting import format_percent


class TrainingProgress:
    """Follows `fit` through its two callbacks; a context manager."""

    def __init__(
        self,
        *,
        live: bool | None = None,
        say: Callable[[str], None] | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._clock = clock
        self._said = clock()
        self._measures = ""
        # Of other targets than classes another score.
        self.score_name = "accuracy"
        self._progress: Bar | None = None
        if sys.stderr.isatty() if live is None else live:
            self._progress = Bar(
                TextColumn("step"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[measures]}", markup=False),
                console=Screen(stderr=True),
            )
            self._task = self._progress.add_task("training", measures="")
        self._print = say or self._print_line

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def on_step(self, step: int, num_steps: int) -> None:
        """After an optimizer step."""
        if self._progress is not None:
            self._progress.update(self._task, completed=step, total=num_steps)
        elif self._clock() - self._said >= SILENCE_SECONDS:
            self.say(f"step {step}/{num_steps}{self._measures and ', '}{self._measures}")

    def on_epoch(self, record: EpochRecord) -> None:
        """After an epoch."""
        self._measures = measures_text(record, self.score_name)
        if self._progress is not None:
            self._progress.update(self._task, measures=self._measures)
        elif record.subset_accuracy is not None or record.step == record.num_steps:
            self.say(f"step {record.step}/{record.num_steps}, {self._measures}")

    def _print_line(self, line: str) -> None:
        if self._progress is None:
            say_line(line, err=True)
        else:
            self._progress.console.print(line)

    def say(self, line: str) -> None:
        """Print a line between those of the training."""
        self._said = self._clock()
        self._print(line)

    @contextmanager
    def saying(self, *kinds: type[Warning]) -> Iterator[None]:
        """Print warnings of some kinds as lines, without the place in the code."""

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if issubclass(category, kinds):
                self.say(f"warning: {message}")
            else:
                before(message, category, *place, **more)

        with warnings.catch_warnings():
            before = warnings.showwarning
            for kind in kinds:
                warnings.simplefilter("always", kind)
            warnings.showwarning = show
            yield


def measures_text(record: EpochRecord, score_name: str = "accuracy") -> str:
    """Loss, accuracies, speed and time left in words."""
    parts = [f"epoch {record.epoch}", f"loss {record.loss:.3f}"]
    parts.append(f"{score_name} {format_percent(record.accuracy)}")
    if record.test_accuracy is not None:
        parts.append(f"test {format_percent(record.test_accuracy)}")
    parts.append(f"{record.images_per_second:,.0f} examples/s")
    if record.seconds_left > 0:
        parts.append(f"{record.seconds_left:.0f} s left")
    return ", ".join(parts)


def resumed_text(found: Progress) -> str:
    """Where training goes on that a checkpoint was found of."""
    where = f"step {found.step} of {found.num_steps}, epoch {found.epoch}"
    if found.step == found.num_steps:
        return f"training was finished, at {where}"
    return f"training goes on after {where}, {found.seconds:.0f} s of training in"
