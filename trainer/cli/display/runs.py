"""Text of runs: the output of `lipt run show`, and the changes of a run as lines or JSON."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from lipt.common.states import LearnerState, RunState
from lipt.common.terminal import print_line
from lipt.common.text import format_bytes
from lipt.trainer.cli.display.output import SILENCE_SECONDS, PrintLine, in_background, print_json
from lipt.trainer.formatting import format_percent, table_lines
from lipt.trainer.progress import RemainingTime
from lipt.trainer.views import LearnerView, ProgressView, RunView

LEARNER_COLUMNS = ("learner", "worker", "device", "step", "loss", "validation", "density", "status")

_FINISHED = (LearnerState.DONE, LearnerState.FAILED, LearnerState.DROPPED)


def learner_status(learner: LearnerView) -> str:
    if learner.ingredient is not None:
        return str(learner.ingredient)
    word = "training" if learner.state is LearnerState.LEASED else learner.state.value
    return f"{word}: {learner.message}" if learner.message else word


def learner_cells(learner: LearnerView, num_steps: int) -> tuple[str, ...]:
    """One row under `LEARNER_COLUMNS`; unknown values are dashes."""
    return (
        str(learner.index),
        learner.worker or "-",
        learner.device or "-",
        f"{learner.step}/{num_steps}",
        f"{learner.loss:.3f}" if learner.step > 0 else "-",
        format_percent(learner.ingredient.accuracy) if learner.ingredient else "-",
        f"{learner.density:.3f}" if learner.density else "-",
        learner_status(learner),
    )


def state_line(run: RunView) -> str:
    line = f"run {run.label}: {run.state}"
    if run.state is RunState.TRAINING:
        done = sum(learner.state is LearnerState.DONE for learner in run.learners)
        line += f", {done} of {len(run.learners)} learners done"
        line += f"; {run.waiting_reason}" if run.waiting_reason else ""
    elif run.progress is not None and run.progress.activity and not run.ended:
        line += f", {run.progress}"
    if run.state is RunState.READY and run.soup is not None:
        soup = run.soup
        line += (
            f"; soup {format_percent(soup.soup_accuracy)} on {soup.num_validation_examples} "
            f"validation examples (theta* {format_percent(soup.initial_accuracy)}, learners "
            f"{format_percent(soup.mean_learner_accuracy)} in the mean and "
            f"{format_percent(soup.best_learner_accuracy)} at best), kept {soup.num_kept} of "
            f"{len(run.learners) or run.config.learners.num_learners} learners"
        )
    elif run.message not in {"", run.state}:
        line += f": {run.message}"
    return line


def run_lines(run: RunView) -> list[str]:
    learners, costs = run.config.learners, run.costs
    lines = [
        state_line(run),
        f"id {run.run_id}, revision {run.revision}, data {run.fingerprint or 'not known yet'}",
        _config_line(run),
        *([f"fitted to the data: {run.lowered_defaults}"] if run.lowered_defaults else []),
        *filter(None, [run.initialization_note]),
    ]
    if costs is not None:
        lines.append(
            f"initialization {costs.initialization_seconds:.1f} s, "
            f"sharding {costs.sharding_seconds:.1f} s, training {costs.training_seconds:.1f} s, "
            f"merging {costs.merging_seconds:.1f} s; {format_bytes(costs.bytes_to_workers)} to and "
            f"{format_bytes(costs.bytes_from_workers)} from workers"
        )
    for name, blob in (("theta*", run.initial_weights), ("theta_p", run.pretrained_weights)):
        if blob is not None:
            lines.append(f"{name}: {format_bytes(blob.size_bytes)}, sha256 {blob.sha256}")
    if run.learners:
        rows = [learner_cells(learner, learners.num_steps) for learner in run.learners]
        lines += ["", *table_lines(LEARNER_COLUMNS, rows)]
    notes = [item for item in run.learners if item.ingredient is not None and item.message]
    return [*lines, *(f"learner {item.index}: {item.message}" for item in notes)]


def _config_line(run: RunView) -> str:
    learners = run.config.learners
    parts = [
        f"model {run.config.model}",
        f"seed {run.config.seed}",
        f"n={learners.num_learners} learners",
        f"M={learners.num_minibatches} minibatches of B={learners.batch_size}",
        f"K={learners.num_steps} steps",
    ]
    if learners.num_snapshots:
        parts.append(f"a snapshot after steps {', '.join(map(str, learners.snapshot_steps))}")
    if learners.frozen:
        parts.append(f"{' and '.join(learners.frozen)} frozen")
    return ", ".join(parts)


def change_lines(previous: RunView | None, current: RunView) -> list[str]:
    """List changed learners in the soup's order, then the state if it changed."""
    before = {learner.index: learner for learner in previous.learners} if previous else {}
    lines: dict[tuple[int, int], str] = {}
    for learner in current.learners:
        part, last = learner.ingredient, before.get(learner.index)
        state, tried = (last.state, last.ingredient) if last else (LearnerState.QUEUED, None)
        changed = state is not learner.state or (tried is None) != (part is None)
        if changed and learner.state is not LearnerState.LEASED:
            lines[part.position if part else -1, learner.index] = _learner_line(learner)
    # An empty `waiting_reason` is no news: the next change shows that the wait is over.
    unchanged = previous is not None and (previous.state, previous.waiting_reason) == (
        current.state,
        current.waiting_reason or previous.waiting_reason,
    )
    return [lines[key] for key in sorted(lines)] + ([] if unchanged else [state_line(current)])


def _learner_line(learner: LearnerView) -> str:
    line, part = f"learner {learner.index}: {learner_status(learner)}", learner.ingredient
    if part is not None:
        accuracy, soup_accuracy = map(format_percent, (part.accuracy, part.soup_accuracy))
        return f"{line}, validation {accuracy}, soup {soup_accuracy}"
    if learner.state is LearnerState.DONE:
        where = f"{learner.worker} ({learner.device}) in {learner.train_seconds:.1f} s"
        return f"{line} on {where}, loss {learner.loss:.3f}, density {learner.density:.3f}"
    return line


def heartbeat_line(run: RunView | None, unchanged_seconds: float) -> str:
    """The line after some seconds without a change."""
    if run is None:
        return f"waiting for the coordinator's first answer for {unchanged_seconds:.0f} s"
    parts = [state_line(run)]
    in_training = sum(item.state is LearnerState.LEASED for item in run.learners)
    if in_training:
        parts.append(f"{in_training} in training")
    elif run.state is RunState.TRAINING and not run.waiting_reason:
        parts.append("no worker has an assignment: is a lipt-worker running?")
    if unchanged_seconds >= 10:
        parts.append(f"no news for {unchanged_seconds:.0f} s")
    return "; ".join(parts)


def stage_progress(run: RunView) -> ProgressView:
    """Progress of the run's present stage; in training, steps of all learners."""
    if run.state is RunState.TRAINING:
        num_steps = run.config.learners.num_steps
        finished = (
            num_steps if learner.state in _FINISHED else learner.step for learner in run.learners
        )
        return ProgressView("", sum(finished), num_steps * len(run.learners))
    if run.progress is None or run.progress.ahead or run.ended:
        return ProgressView("", 0, 0)
    return run.progress


class RunLines:
    """Prints a line per change of a run, and at least one every ten seconds."""

    def __init__(self, print_line: PrintLine, now: float) -> None:
        self._print_line = print_line
        self._run: RunView | None = None
        self._changed_at = self._said_at = now
        self._remaining = RemainingTime()

    def show(self, run: RunView, now: float) -> None:
        self._remaining.observe(run.state, stage_progress(run), now)
        lines = change_lines(self._run, run)
        self._run, self._changed_at = run, now
        for line in lines:
            self._print_line(line)
            self._said_at = now
        self.tick(now)

    def tick(self, now: float) -> None:
        if now - self._said_at >= SILENCE_SECONDS:
            line = heartbeat_line(self._run, now - self._changed_at)
            self._print_line("; ".join(filter(None, (line, self._remaining.text(now)))))
            self._said_at = now


def _until_it_stops(changes: Iterable[RunView]) -> Iterator[RunView]:
    for run in changes:
        yield run
        if not run.goes_on:
            return


def follow(
    changes: Iterable[RunView], *, as_json: bool = False, check: Callable[[], None] = lambda: None
) -> RunView | None:
    """Print a run's changes until it ends or is held; `check` may raise an error meanwhile."""
    latest: RunView | None = None
    lines = RunLines(print_line, time.monotonic())
    for run in in_background(_until_it_stops(changes)):
        latest = run or latest
        if run is not None and as_json:
            print_json(run)
        elif run is not None:
            lines.show(run, time.monotonic())
        elif not as_json:
            lines.tick(time.monotonic())
        check()
    return latest
