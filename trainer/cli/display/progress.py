"""Progress of a run in words: what has changed and what goes on; pure, so that tests are easy."""

from __future__ import annotations

from lipt.common.states import LearnerState, RunState
from lipt.trainer.views import LearnerView, RunView
from lipt.trainer.writing.formatting import format_percent

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
