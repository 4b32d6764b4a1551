"""Pace: how long a run's present stage still takes, by what was seen of it.

Learners in training end when their workers' pace says so, and those that wait are dealt to the
workers that have one, first free, first served. Every other stage is taken to go on as fast as
it went while it was watched. What nothing is known of is not guessed.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from statistics import median

from lipt.common.states import LearnerState, RunState
from lipt.trainer.views import LearnerView, RunView

# A stage is watched for so long before its pace is believed.
_MIN_SECONDS = 1.0
_MINUTE, _HOUR = 60.0, 3600.0


@dataclass(frozen=True)
class _Beginning:
    """Where something was when it was first seen."""

    at: float
    done: int


class Pace:
    """The pace of one run; times are seconds of one clock that never goes back."""

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
