"""Choice: what a person looks at, and how a key changes that; pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from lipt.trainer.views import RunView, ServiceView


class Pane(StrEnum):
    """What the lower part of the screen shows."""

    LEARNERS = "learners"
    WORKERS = "workers"
    QUEUE = "queue"


@dataclass(frozen=True)
class Choice:
    """What is looked at.

    run_id: the chosen run; empty for the newest, whichever that is.
    pane: what is shown below the runs.
    asked: the run that a person is asked about before it is cancelled; empty for none.
    quits: whether the person has had enough.
    """

    run_id: str = ""
    pane: Pane = Pane.LEARNERS
    asked: str = ""
    quits: bool = False


@dataclass(frozen=True)
class Cancelling:
    """A run that the person wants cancelled."""

    run_id: str


def chosen_run(view: ServiceView | None, choice: Choice) -> RunView | None:
    """The run that is looked at; the newest where the chosen one is shown no more."""
    if view is None or not view.runs:
        return None
    return next((run for run in view.runs if run.run_id == choice.run_id), view.runs[0])


def after_key(
    choice: Choice, key: str, view: ServiceView | None
) -> tuple[Choice, Cancelling | None]:
    """What is looked at after a key, and what is to be done.

    Args:
        choice: before it.
        key: a character, or "up", "down" or "tab".
        view: what there is to look at.
    """
    if choice.asked:
        wanted = Cancelling(choice.asked) if key in ("y", "Y") else None
        return replace(choice, asked=""), wanted
    run = chosen_run(view, choice)
    match key:
        case "q" | "Q":
            return replace(choice, quits=True), None
        case "tab":
            panes = list(Pane)
            return replace(choice, pane=panes[(panes.index(choice.pane) + 1) % len(panes)]), None
        case "c" if run is not None and not run.ended:
            return replace(choice, asked=run.run_id), None
        case "down" | "j" | "up" | "k" if view is not None and run is not None:
            step = 1 if key in ("down", "j") else -1
            place = min(max(view.runs.index(run) + step, 0), len(view.runs) - 1)
            return replace(choice, run_id=view.runs[place].run_id), None
        case _:
            return choice, None
