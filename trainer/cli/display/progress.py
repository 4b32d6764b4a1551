"""Runs and learners in words: states, the time that is left, and the summary of a run."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from lipt.common.config.run_config import RunConfig
from lipt.common.states import LearnerState, RunState
from lipt.common.text import format_bytes
from lipt.trainer.views import CostsView, LearnerView, RunView
from lipt.trainer.writing.formatting import format_percent, table_lines

LEARNER_COLUMNS = ("learner", "worker", "device", "step", "loss", "validation", "density", "status")

# A line per this long, and news older than this is called old.
STALE_SECONDS = 10.0

_FINISHED = (LearnerState.DONE, LearnerState.FAILED, LearnerState.DROPPED)


def learner_status(learner: LearnerView) -> str:
    """What became of a learner, or what it is doing."""
    if learner.ingredient is not None:
        return str(learner.ingredient)
    word = "training" if learner.state is LearnerState.LEASED else learner.state.value
    return f"{word}: {learner.message}" if learner.message else word


def learner_cells(learner: LearnerView, num_steps: int) -> tuple[str, ...]:
    """One row under `LEARNER_COLUMNS`; what is not known yet is a dash."""
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
    """Where a run is, what it is doing there, and what came out where it has ended."""
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
    """The soup's accuracy beside what it has to beat."""
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
    """A learner that has finished, was tried in the soup, or waits for a worker again."""
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
    """What to say about a change: a line per state and per learner that moved on.

    Args:
        previous: the run as it was last shown, None at first.
        current: the run now.
    """
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
    """A sign of life, for when nothing was worth a line for some seconds.

    Args:
        run: the run as it was last heard of, None before the first answer.
        unchanged_seconds: since anything at all was heard of it.
    """
    if run is None:
        return f"waiting for the coordinator's first answer for {unchanged_seconds:.0f} s"
    parts = [state_line(run)]
    training = [item for item in run.learners if item.state is LearnerState.LEASED]
    if run.state is RunState.TRAINING and not training and not run.waiting:
        parts.append("no worker has an assignment: is a lipt-worker running?")
    elif training:
        steps = [
            f"learner {item.index} at step {item.step}/{run.config.learners.num_steps}"
            for item in training[:4]
        ]
        more = [f"{len(training) - 4} more"] if len(training) > 4 else []
        parts.append(", ".join(steps + more))
    if unchanged_seconds >= STALE_SECONDS:
        parts.append(f"no news for {unchanged_seconds:.0f} s")
    return "; ".join(parts)


# A stage is watched for so long before its pace is believed.
_MIN_SECONDS = 1.0
_MINUTE, _HOUR = 60.0, 3600.0


@dataclass(frozen=True)
class _Beginning:
    """Where something was when it was first seen."""

    at: float
    done: int


class Pace:
    """The pace of one run, and how long its present stage still takes.

    Learners in training end when their workers' pace says so; those that wait are dealt to the
    workers that have one, first free, first served. Every other stage is taken to go on as fast as
    it went while it was watched. What nothing is known of is not guessed.

    Times are seconds of one clock that never goes back.
    """

    def __init__(self) -> None:
        self._run: RunView | None = None
        # Of the activity under way, and of each learner's present attempt.
        self._activity = ("", 0)
        self._beginning = _Beginning(0.0, 0)
        self._learners: dict[tuple[int, int], _Beginning] = {}

    def observe(self, run: RunView, now: float) -> None:
        """Note how far the run is."""
        progress = run.progress
        activity = ("", 0) if progress is None else (progress.activity, progress.total)
        done = 0 if progress is None else progress.done
        began_anew = self._run is None or self._run.state is not run.state
        if began_anew or activity != self._activity or done < self._beginning.done:
            self._activity, self._beginning = activity, _Beginning(now, done)
        for learner in run.learners:
            if learner.state is LearnerState.LEASED:
                attempt = (learner.index, learner.attempts)
                self._learners.setdefault(attempt, _Beginning(now, learner.step))
        self._run = run

    def seconds_left(self, now: float) -> float | None:
        """Until the present stage ends; None where nothing tells."""
        run = self._run
        if run is None or run.ended:
            return None
        if run.state is RunState.TRAINING:
            return self._until_trained(run, now)
        progress = run.progress
        if progress is None or not progress.total or progress.ahead:
            return None
        return _until(self._beginning, progress.done, progress.total, now)

    def words(self, now: float) -> str:
        """The same for people; empty where nothing tells."""
        seconds = self.seconds_left(now)
        return "" if seconds is None else f"about {in_words(seconds)} left"

    def _until_trained(self, run: RunView, now: float) -> float | None:
        out = [one for one in run.learners if one.state is LearnerState.LEASED]
        num_queued = sum(one.state is LearnerState.QUEUED for one in run.learners)
        if not out:
            return None
        whole = self._seconds_each(run, now)
        left = [self._until_in(one, run, whole, now) for one in out]
        known = [seconds for seconds in left if seconds is not None]
        if len(known) < len(left) or (num_queued and whole is None):
            return None
        free_at = list(known)
        heapq.heapify(free_at)
        for _ in range(num_queued):
            heapq.heappush(free_at, heapq.heappop(free_at) + (whole or 0.0))
        return max(free_at)

    def _seconds_each(self, run: RunView, now: float) -> float | None:
        """What a learner takes from its assignment to its result: those that are in, or a guess."""
        ended = [
            (one.committed_at - one.leased_at).total_seconds()
            for one in run.learners
            if one.committed_at is not None and one.leased_at is not None
        ]
        if ended:
            return max(median(ended), 0.0)
        guesses = []
        for one in run.learners:
            seen = self._learners.get((one.index, one.attempts))
            num_steps = run.config.learners.num_steps
            if one.state is LearnerState.LEASED and seen is not None and one.step > seen.done:
                guesses.append((now - seen.at) * num_steps / (one.step - seen.done))
        return median(guesses) if guesses else None

    def _until_in(
        self, learner: LearnerView, run: RunView, whole: float | None, now: float
    ) -> float | None:
        seen = self._learners[learner.index, learner.attempts]
        by_steps = _until(seen, learner.step, run.config.learners.num_steps, now)
        if by_steps is not None or whole is None:
            return by_steps
        # Not heard of since it began: as the others, less what has gone by.
        return max(whole - (now - seen.at), 0.0)


def _until(beginning: _Beginning, done: int, total: int, now: float) -> float | None:
    """Until `total` is done, where it goes on as since the beginning."""
    seconds, moved = now - beginning.at, done - beginning.done
    if moved <= 0 or seconds < _MIN_SECONDS:
        return None
    return max(seconds * (total - done) / moved, 0.0)


def in_words(seconds: float) -> str:
    """A duration as nobody could know it better: 47 s is "50 s", 400 s is "7 min"."""
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
    # Beside a learner's part in the soup there is no room for what went wrong on the way.
    notes = [item for item in run.learners if item.ingredient is not None and item.message]
    lines += [f"learner {item.index}: {item.message}" for item in notes]
    return lines


def _config_line(config: RunConfig) -> str:
    learners = config.learners
    return (
        f"model {config.model}, seed {config.seed}, n={learners.num_learners} learners, "
        f"M={learners.num_minibatches} minibatches of B={learners.batch_size}, "
        f"K={learners.num_steps} steps"
        + (
            f", a snapshot after {_steps(learners.snapshot_steps)}"
            if learners.num_snapshots
            else ""
        )
        + (f", {' and '.join(learners.frozen)} frozen" if learners.frozen else "")
    )


def _steps(steps: Sequence[int]) -> str:
    return f"step{'s' if len(steps) > 1 else ''} {', '.join(map(str, steps))}"


def _costs_line(costs: CostsView) -> str:
    return (
        f"initialization {costs.initialization_seconds:.1f} s, "
        f"sharding {costs.sharding_seconds:.1f} s, training {costs.training_seconds:.1f} s, "
        f"merging {costs.merging_seconds:.1f} s; {format_bytes(costs.bytes_to_workers)} to and "
        f"{format_bytes(costs.bytes_from_workers)} from workers"
    )
