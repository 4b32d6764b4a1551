"""Progress in words: runs with their learners, and main training."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from lipt.common.config.run_config import RunConfig
from lipt.common.states import LearnerState, RunState
from lipt.common.terminal import say as say_line
from lipt.common.text import format_bytes
from lipt.trainer.cli.display.output import SILENCE_SECONDS
from lipt.trainer.views import CostsView, LearnerView, RunView
from lipt.trainer.writing.formatting import format_percent, table_lines

if TYPE_CHECKING:  # which would import torch
    from lipt.trainer.main_training.records import EpochRecord, Progress

LEARNER_COLUMNS = ("learner", "worker", "device", "step", "loss", "validation", "density", "status")

# A line per this long, and news older than this is called old.
STALE_SECONDS = 10.0

_FINISHED = (LearnerState.DONE, LearnerState.FAILED, LearnerState.DROPPED)


def learner_status(learner: LearnerView) -> str:
    """The outcome of a learner, or what it is doing."""
    if learner.ingredient is not None:
        return str(learner.ingredient)
    word = "training" if learner.state is LearnerState.LEASED else learner.state.value
    return f"{word}: {learner.message}" if learner.message else word


def learner_cells(learner: LearnerView, num_steps: int) -> tuple[str, ...]:
    """One row under `LEARNER_COLUMNS`; unknown values are dashes."""
    started = learner.step > 0
    return (
        str(learner.index),
        learner.worker or "-",
        learner.device or "-",
        f"{learner.step}/{num_steps}",
        f"{learner.loss:.3f}" if started else "-",
        format_percent(learner.ingredient.accuracy) if learner.ingredient else "-",
        f"{learner.density:.3f}" if learner.density else "-",
        learner_status(learner),
    )


def shown_learners(learners: Sequence[LearnerView], height: int) -> tuple[LearnerView, ...]:
    """As many learners as there are lines: those in training before the others."""
    if len(learners) <= height:
        return tuple(learners)
    by_interest = sorted(
        learners, key=lambda one: (one.state is not LearnerState.LEASED, one.index)
    )
    return tuple(sorted(by_interest[:height], key=lambda one: one.index))


def learner_style(learner: LearnerView) -> str:
    """The style of a learner's row in a table."""
    if learner.ingredient is not None:
        return "green" if learner.ingredient.kept else "dim"
    styles = {LearnerState.LEASED: "cyan", LearnerState.FAILED: "red", LearnerState.DROPPED: "dim"}
    return styles.get(learner.state, "")


def state_line(run: RunView) -> str:
    """A run's state, its progress, and its outcome where it has ended."""
    line = f"run {run.label}: {run.state}"
    if run.state is RunState.TRAINING:
        done = sum(learner.state is LearnerState.DONE for learner in run.learners)
        line += f", {done} of {len(run.learners)} learners done"
        line += f"; {run.waiting}" if run.waiting else ""
    elif run.progress is not None and run.progress.activity and not run.ended:
        line += f", {run.progress}"
    if run.state is RunState.READY and run.soup is not None:
        line += f"; {soup_line(run)}"
    elif run.message not in {"", run.state}:
        line += f": {run.message}"
    return line


def soup_line(run: RunView) -> str:
    """The soup's accuracy beside those of theta* and the learners."""
    if run.soup is None:
        return "no soup was made"
    soup = run.soup
    return (
        f"soup {format_percent(soup.soup_accuracy)} on {soup.num_validation_examples} validation "
        f"examples (theta* {format_percent(soup.initial_accuracy)}, learners "
        f"{format_percent(soup.mean_learner_accuracy)} in the mean and "
        f"{format_percent(soup.best_learner_accuracy)} at best), kept {soup.num_kept} of "
        f"{len(run.learners) or run.config.learners.num_learners} learners"
    )


def learner_line(learner: LearnerView) -> str:
    """A learner's news."""
    line = f"learner {learner.index}: {learner_status(learner)}"
    if learner.ingredient is not None:
        return (
            f"{line}, validation {format_percent(learner.ingredient.accuracy)}, "
            f"soup {format_percent(learner.ingredient.soup_accuracy)}"
        )
    if learner.state is LearnerState.DONE:
        return (
            f"{line} on {learner.worker} ({learner.device}) in {learner.train_seconds:.1f} s, "
            f"loss {learner.loss:.3f}, density {learner.density:.3f}"
        )
    return line


def change_lines(previous: RunView | None, current: RunView) -> list[str]:
    """A line for a changed state and for each learner that moved on."""
    before = {learner.index: learner for learner in previous.learners} if previous else {}
    # Learners are told in the soup's order where there is one.
    learners = sorted(
        current.learners,
        key=lambda learner: (
            learner.ingredient.position if learner.ingredient else -1,
            learner.index,
        ),
    )
    lines = [learner_line(item) for item in learners if _moved_on(before.get(item.index), item)]
    told = previous is not None and (previous.state, previous.waiting) == (
        current.state,
        current.waiting or previous.waiting,  # what is mended is seen by what follows
    )
    if not told:
        lines.append(state_line(current))
    return lines


def _moved_on(before: LearnerView | None, now: LearnerView) -> bool:
    state = before.state if before else LearnerState.QUEUED
    judged = before is not None and before.ingredient is not None
    return (
        (now.state in _FINISHED and state is not now.state)
        or (now.ingredient is not None and not judged)
        or (now.state is LearnerState.QUEUED and state is LearnerState.LEASED)
    )


def heartbeat_line(run: RunView | None, unchanged_seconds: float) -> str:
    """A sign of life, for when nothing was worth a line for some seconds."""
    if run is None:
        return f"waiting for the coordinator's first answer for {unchanged_seconds:.0f} s"
    parts = [state_line(run)]
    in_training = sum(item.state is LearnerState.LEASED for item in run.learners)
    if in_training:
        parts.append(f"{in_training} in training")
    elif run.state is RunState.TRAINING and not run.waiting:
        parts.append("no worker has an assignment: is a lipt-worker running?")
    if unchanged_seconds >= STALE_SECONDS:
        parts.append(f"no news for {unchanged_seconds:.0f} s")
    return "; ".join(parts)


# A stage is watched for so long before its pace is believed.
_MIN_SECONDS = 1.0
_MINUTE, _HOUR = 60.0, 3600.0


class Pace:
    """Estimates how long a run's present stage still takes: as fast as since it was first seen.

    Times are seconds of one clock that never goes back.
    """

    def __init__(self) -> None:
        self._stage: tuple[object, ...] = ()
        self._began = self._first = self._done = self._total = 0.0

    def observe(self, run: RunView, now: float) -> None:
        """Note how far the run is."""
        progress = run.progress
        stage: tuple[object, ...] = (run.state,)
        done = total = 0
        if run.state is RunState.TRAINING:
            num_steps = run.config.learners.num_steps
            total = num_steps * len(run.learners)
            done = sum(
                num_steps if learner.state in _FINISHED else learner.step
                for learner in run.learners
            )
        elif progress is not None and not progress.ahead and not run.ended:
            stage, done, total = (run.state, progress.activity), progress.done, progress.total
        if (*stage, total) != self._stage or done < self._done:
            self._stage, self._began, self._first = (*stage, total), now, done
        self._done, self._total = done, total

    def seconds_left(self, now: float) -> float | None:
        """Until the present stage ends; None where it has not moved yet."""
        seconds, moved = now - self._began, self._done - self._first
        if moved <= 0 or seconds < _MIN_SECONDS:
            return None
        return seconds * (self._total - self._done) / moved

    def words(self, now: float) -> str:
        """The same in words; empty where it is not known."""
        seconds = self.seconds_left(now)
        return "" if seconds is None else f"about {in_words(seconds)} left"


def in_words(seconds: float) -> str:
    """A rounded duration: 47 s is "50 s", 400 s is "7 min"."""
    if seconds < 10:
        return "10 s"
    if seconds < 90:
        return f"{10 * round(seconds / 10)} s"
    if seconds < 90 * _MINUTE:
        return f"{round(seconds / _MINUTE)} min"
    hours, minutes = divmod(round(seconds / _MINUTE), 60)
    return f"{hours} h {minutes} min" if seconds < 10 * _HOUR else f"{round(seconds / _HOUR)} h"


def run_lines(run: RunView) -> list[str]:
    """What `lipt run show` prints."""
    learners = run.config.learners
    lines = [
        state_line(run),
        f"id {run.run_id}, revision {run.revision}, data {run.fingerprint or 'not known yet'}",
        _config_line(run.config),
    ]
    if run.fitted:
        lines.append(f"fitted to the data: {run.fitted}")
    if run.note:
        lines.append(run.note)
    if run.costs is not None:
        lines.append(_costs_line(run.costs))
    for name, blob in (("theta*", run.initial_weights), ("theta_p", run.pretrained_weights)):
        if blob is not None:
            lines.append(f"{name}: {format_bytes(blob.size_bytes)}, sha256 {blob.sha256}")
    if run.learners:
        rows = [learner_cells(learner, learners.num_steps) for learner in run.learners]
        lines += ["", *table_lines(LEARNER_COLUMNS, rows)]
    notes = [item for item in run.learners if item.ingredient is not None and item.message]
    lines += [f"learner {item.index}: {item.message}" for item in notes]
    return lines


def _config_line(config: RunConfig) -> str:
    learners = config.learners
    parts = [
        f"model {config.model}",
        f"seed {config.seed}",
        f"n={learners.num_learners} learners",
        f"M={learners.num_minibatches} minibatches of B={learners.batch_size}",
        f"K={learners.num_steps} steps",
    ]
    if learners.num_snapshots:
        parts.append(f"a snapshot after steps {', '.join(map(str, learners.snapshot_steps))}")
    if learners.frozen:
        parts.append(f"{' and '.join(learners.frozen)} frozen")
    return ", ".join(parts)


def _costs_line(costs: CostsView) -> str:
    return (
        f"initialization {costs.initialization_seconds:.1f} s, "
        f"sharding {costs.sharding_seconds:.1f} s, training {costs.training_seconds:.1f} s, "
        f"merging {costs.merging_seconds:.1f} s; {format_bytes(costs.bytes_to_workers)} to and "
        f"{format_bytes(costs.bytes_from_workers)} from workers"
    )


class TrainingProgress:
    """Lines on standard error about a training: after evaluations, and now and then."""

    def __init__(
        self,
        say: Callable[[str], None] = partial(say_line, err=True),
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._print, self._clock = say, clock
        self._said = clock()
        self._measures = ""
        # Of other targets than classes another score.
        self.score_name = "accuracy"

    def on_step(self, step: int, num_steps: int) -> None:
        """After an optimizer step."""
        if self._clock() - self._said >= SILENCE_SECONDS:
            self.say(f"step {step}/{num_steps}{self._measures and ', '}{self._measures}")

    def on_epoch(self, record: EpochRecord) -> None:
        """After an epoch."""
        self._measures = measures_text(record, self.score_name)
        if record.subset_accuracy is not None or record.step == record.num_steps:
            self.say(f"step {record.step}/{record.num_steps}, {self._measures}")

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
