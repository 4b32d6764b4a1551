"""Reaching a target: how soon trainings come to an accuracy, in steps and in seconds.

Training is looked at a few times, so "when" is the first look that finds the accuracy. The
learning rate of every training falls over all of its steps, so one whose whole schedule ended
earlier might get there earlier: that holds for all rows alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean

from lipt.trainer.comparison.intervals import Difference, Key, paired_difference
from lipt.trainer.comparison.trial import Trial
from lipt.trainer.main_training.records import Look


@dataclass(frozen=True)
class Reached:
    """How soon some trainings came to a target.

    num_reached: how many of them did.
    steps, seconds: the mean over those, choosing included; None where none did.
    """

    num_trainings: int
    num_reached: int
    steps: float | None
    seconds: float | None

    @property
    def always(self) -> bool:
        """Whether every training came to it."""
        return self.num_reached == self.num_trainings


@dataclass(frozen=True)
class Reach:
    """How soon the trainings of a row came to a target, and what people would do instead.

    of_random: whether the target is what a fixed random subset of the fraction ends with.
    own: of the row.
    everything, redrawn: of trainings on all examples, and on a random subset re-drawn every
        epoch; None where there are none.
    to_everything, to_redrawn: the row's seconds minus theirs; None where some training of
        either never came to the target.
    """

    target: float
    of_random: bool
    own: Reached
    everything: Reached | None
    redrawn: Reached | None
    to_everything: Difference | None
    to_redrawn: Difference | None


def course(trials: Sequence[Trial]) -> tuple[Look, ...]:
    """Means over trainings that were looked at after the same steps; else nothing."""
    if len({tuple(look.step for look in trial.looks) for trial in trials}) != 1:
        return ()
    return tuple(
        Look(
            step=looks[0].step,
            seconds=fmean(look.seconds for look in looks),
            accuracy=fmean(look.accuracy for look in looks),
        )
        for looks in zip(*(trial.course for trial in trials), strict=True)
    )


def reach(
    trials: Sequence[Trial],
    target: float,
    everything: Sequence[Trial],
    redrawn: Sequence[Trial],
    *,
    of_random: bool,
) -> Reach | None:
    """How soon trainings come to an accuracy.

    Args:
        trials: of one row.
        target: the accuracy.
        everything: trainings on all examples.
        redrawn: trainings on a random subset that is re-drawn every epoch.
        of_random: whether the target is what a fixed random subset ends with.

    Returns:
        None where a training of the row was not looked at on its way.
    """
    own = _reached(trials, target)
    if own is None:
        return None
    return Reach(
        target=target,
        of_random=of_random,
        own=own,
        everything=_reached(everything, target),
        redrawn=_reached(redrawn, target),
        to_everything=_later(trials, everything, target),
        to_redrawn=_later(trials, redrawn, target),
    )


def _reached(trials: Sequence[Trial], target: float) -> Reached | None:
    if not trials or not all(trial.looks for trial in trials):
        return None
    found = [when for trial in trials if (when := trial.reached(target)) is not None]
    return Reached(
        num_trainings=len(trials),
        num_reached=len(found),
        steps=fmean(steps for steps, _ in found) if found else None,
        seconds=fmean(seconds for _, seconds in found) if found else None,
    )


def _later(trials: Sequence[Trial], rivals: Sequence[Trial], target: float) -> Difference | None:
    """Seconds later than rivals, where all trainings of both reach the target."""
    ours, theirs = (_seconds(found, target) for found in (trials, rivals))
    if len(ours) < len(trials) or len(theirs) < len(rivals):
        return None
    # Any width of an interval in seconds will do: it decides by its sign.
    return paired_difference(ours, theirs, resolution=inf)


def _seconds(trials: Sequence[Trial], target: float) -> dict[Key, float]:
    reached = {(trial.seed, trial.repeat): trial.reached(target) for trial in trials}
    return {key: when[1] for key, when in reached.items() if when is not None}
