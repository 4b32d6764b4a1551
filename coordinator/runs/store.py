"""Run store: all runs in memory, written to the database before anybody sees a change.

A change is a function from the old record to the new one; changes are applied
one after another, so a check inside it (is this lease still valid?) holds
until it is durable.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from time import time

from lipt.common.errors import UnknownRunError
from lipt.common.states import LearnerPhase, RunState
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import IngredientRecord, LearnerRecord, RunRecord

# What the newest run can be called.
LATEST = "latest"


@dataclass(frozen=True)
class Activity:
    """What a run is doing now, and how far it is; lives in memory only."""

    text: str = ""
    done: int = 0
    total: int = 0
    # How many computations come first, while it waits for its turn.
    ahead: int = 0


@dataclass(frozen=True)
class LearnerProgress:
    """What a worker last said about its learner; lives in memory only."""

    phase: LearnerPhase = LearnerPhase.UNKNOWN
    step: int = 0
    loss: float = 0.0


@dataclass
class _Entry:
    run: RunRecord
    revision: int
    activity: Activity = Activity()
    held: str = ""
    progress: dict[int, LearnerProgress] = field(default_factory=dict)
    # Of the soup that is being made.
    ingredients: dict[int, IngredientRecord] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class RunStore:
    """The runs of one coordinator."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._entries: dict[str, _Entry] = {}
        self._writing = asyncio.Lock()
        self._listeners: list[Callable[[RunRecord], None]] = []

    async def load(self) -> None:
        """Read what earlier processes left."""
        for run in await self._database.load_runs():
            self._entries[run.run_id] = _Entry(run, _next_revision(0))

    def runs(self) -> tuple[RunRecord, ...]:
        """All runs, oldest first."""
        return tuple(entry.run for entry in self._entries.values())

    def find(self, key: str) -> RunRecord:
        """A run by id or name; "latest" is the newest.

        Raises:
            UnknownRunError: there is none; the sentence names the newest ones.
        """
        if key in self._entries:
            return self._entries[key].run
        runs = self.runs()
        if key == LATEST and runs:
            return runs[-1]
        for run in runs:
            if run.name == key:
                return run
        known = ", ".join(run.name for run in runs[:-6:-1])
        raise UnknownRunError(
            f"there is no run {key!r}; the newest are: {known}."
            if known
            else f"there is no run {key!r}, nor any other yet. Start one: lipt run start"
        )

    def find_request(self, request_id: str) -> RunRecord | None:
        """The run that a request id started."""
        return next((run for run in self.runs() if run.request_id == request_id), None)

    def listen(self, listener: Callable[[RunRecord], None]) -> None:
        """Call `listener` after every durable change."""
        self._listeners.append(listener)

    async def add(self, run: RunRecord) -> None:
        """Store a new run."""
        async with self._writing:
            await self._database.save_run(run, run.learners)
            self._entries[run.run_id] = _Entry(run, _next_revision(0))
        self._announce(run.run_id)

    async def update(self, run_id: str, change: Callable[[RunRecord], RunRecord]) -> RunRecord:
        """Apply a change, durably; what `change` raises leaves the run as it was.

        Raises:
            UnknownRunError: there is no such run.
        """
        async with self._writing:
            entry = self._entries[self.find(run_id).run_id]
            old, new = entry.run, change(entry.run)
            if new == old:
                return old
            before = dict(enumerate(old.learners))
            # Nearly all are the very same objects; comparing their fields takes its time.
            changed = [
                item
                for item in new.learners
                if (was := before.get(item.index)) is not item and was != item
            ]
            await self._database.save_run(new, changed)
            entry.run = new
            if new.state is not RunState.MERGING:
                entry.ingredients.clear()
            for learner in changed:
                if not learner.state.open:
                    entry.progress.pop(learner.index, None)
        self._announce(new.run_id)
        return new

    def activity(self, run_id: str) -> Activity:
        """What the run is doing now."""
        return self._entries[run_id].activity

    def set_activity(self, run_id: str, activity: Activity) -> None:
        """Say what the run is doing now."""
        self._entries[run_id].activity = activity
        self._touch(run_id)

    def held(self, run_id: str) -> str:
        """Why nothing can be computed for the run: its own data is not there; or empty."""
        return self._entries[run_id].held

    def hold(self, run_id: str, reason: str) -> None:
        """Say, for as long as this process lives, why nothing can be computed for the run."""
        if self._entries[run_id].held != reason:
            self._entries[run_id].held = reason
            self._touch(run_id)

    def release(self, run_id: str) -> None:
        """The run's data is there: whoever waits for the run is told; harmless where none does."""
        if self._entries[run_id].held:
            self._entries[run_id].held = ""
            self._announce(run_id)

    def shown_state(self, run: RunRecord) -> RunState:
        """The run's state as peers see it: that of its record, unless it cannot leave it now."""
        waits = not run.state.ended and self.held(run.run_id)
        return RunState.HELD if waits else run.state

    def progress(self, run_id: str, index: int) -> LearnerProgress:
        """What is known of a learner that is being trained."""
        return self._entries[run_id].progress.get(index, LearnerProgress())

    def set_progress(self, run_id: str, index: int, progress: LearnerProgress) -> None:
        """Note what a worker said of its learner."""
        if self._entries[run_id].progress.get(index) != progress:
            self._entries[run_id].progress[index] = progress
            self._touch(run_id)

    def ingredient(self, run_id: str, learner: LearnerRecord) -> IngredientRecord | None:
        """A learner's part in the soup, also in one that is being made."""
        return learner.ingredient or self._entries[run_id].ingredients.get(learner.index)

    def set_ingredient(self, run_id: str, index: int, ingredient: IngredientRecord) -> None:
        """Note what became of a learner that was offered to the soup being made."""
        self._entries[run_id].ingredients[index] = ingredient
        self._touch(run_id)

    def revision(self, run_id: str) -> int:
        """Grows with every change; also across restarts."""
        return self._entries[run_id].revision

    async def wait_for_change(self, run_id: str, after: int, *, timeout_seconds: float) -> int:
        """The run's revision once it is above `after`, or at the time-out."""
        entry = self._entries[run_id]
        if entry.revision <= after:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_seconds):
                    await entry.changed.wait()
        return entry.revision

    def _announce(self, run_id: str) -> None:
        self._touch(run_id)
        for listener in self._listeners:
            listener(self._entries[run_id].run)

    def _touch(self, run_id: str) -> None:
        entry = self._entries[run_id]
        entry.revision = _next_revision(entry.revision)
        # Whoever waits now is woken; whoever comes later waits for the next one.
        entry.changed.set()
        entry.changed = asyncio.Event()


def _next_revision(previous: int) -> int:
    # Milliseconds since 1970, so that a restart goes on above what was seen before.
    return max(previous + 1, int(time() * 1000))
