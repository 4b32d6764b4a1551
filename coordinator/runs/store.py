"""Run store: all runs in memory, written to the database before anybody sees a change.

What a change is, and what holds of it, is in `lipt.coordinator.runs.changing`. Changes of one run
that come while it is being written are written together, and are seen as one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic, time

from lipt.common.errors import RunNotReadyError, UnknownRunError
from lipt.common.states import LearnerPhase, LearnerState, RunState
from lipt.coordinator.runs.changing import Change, ChangingRun, OnDurable
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
    record: ChangingRun
    revision: int
    # The revision at which more has changed last than how far the run is.
    turn: int
    # When it was last asked for.
    used_at: float
    activity: Activity = Activity()
    held: str = ""
    progress: dict[int, LearnerProgress] = field(default_factory=dict)
    # Of the soup that is being made.
    ingredients: dict[int, IngredientRecord] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    turned: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def run(self) -> RunRecord:
        return self.record.shown


class RunStore:
    """The runs of one coordinator."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = monotonic) -> None:
        self._database, self._clock = database, clock
        self._entries: dict[str, _Entry] = {}
        self._learner_listeners: list[OnDurable] = []
        self._listeners: list[Callable[[RunRecord], None]] = []

    async def load(self) -> None:
        """Read what earlier processes left."""
        for run in await self._database.load_runs():
            self._enter(run)

    def runs(self) -> tuple[RunRecord, ...]:
        """All runs, oldest first."""
        return tuple(entry.run for entry in self._entries.values())

    def find(self, key: str) -> RunRecord:
        """A run by id or name; "latest" is the newest.

        Raises:
            UnknownRunError: there is none; the sentence names the newest ones.
        """
        entry = self._entries.get(key) or self._named(key)
        if entry is not None:
            entry.used_at = self._clock()
            return entry.run
        known = ", ".join(run.name for run in self.runs()[:-6:-1])
        raise UnknownRunError(
            f"there is no run {key!r}; the newest are: {known}."
            if known
            else f"there is no run {key!r}, nor any other yet. Start one: lipt run start"
        )

    def find_request(self, request_id: str) -> RunRecord | None:
        """The run that a request id started."""
        return next((run for run in self.runs() if run.request_id == request_id), None)

    def listen(self, listener: Callable[[RunRecord], None]) -> None:
        """Call `listener` after every durable change, or after several that were made at once."""
        self._listeners.append(listener)

    def listen_to_learners(self, listener: OnDurable) -> None:
        """The same, with the learners that have changed; before those who `listen`."""
        self._learner_listeners.append(listener)

    async def add(self, run: RunRecord) -> None:
        """Store a new run."""
        await self._database.save_run(run, run.learners)
        self._enter(run)
        self._announce(run, run.learners)

    async def update(self, run_id: str, change: Change) -> RunRecord:
        """Apply a change, durably; what `change` raises leaves the run as it was.

        Returns:
            The run as the change left it; later ones may have changed it since.

        Raises:
            UnknownRunError: there is no such run.
            StateError: it could not be written, nor could what was built upon it.
        """
        return await self._entries[self.find(run_id).run_id].record.update(change)

    async def remove(self, run_id: str) -> None:
        """Remove an ended run, with all that is on record of it.

        Raises:
            UnknownRunError: there is no such run.
            RunNotReadyError: it has not ended.
            StateError: it could not be removed; it is there as before.
        """
        run = self._entry(run_id).run
        if not run.state.ended:
            raise RunNotReadyError(
                f"run {run.name} is {run.state.value}, and only runs that have ended are removed. "
                "Cancel it first."
            )
        await self._database.remove_run(run_id)
        self._entries.pop(run_id, None)

    def idle_seconds(self, run_id: str) -> float:
        """How long nobody has asked for the run.

        Raises:
            UnknownRunError: there is no such run.
        """
        return self._clock() - self._entry(run_id).used_at

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
            self._turn(run_id)

    def release(self, run_id: str) -> None:
        """The run's data is there: whoever waits for the run is told; harmless where none does."""
        if self._entries[run_id].held:
            self._entries[run_id].held = ""
            self._announce(self._entries[run_id].run, ())

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
            await _wait(entry.changed, timeout_seconds)
        return entry.revision

    async def wait_for_turn(self, run_id: str, after: int, *, timeout_seconds: float) -> None:
        """Wait until the record has changed, or whether it is held, at a revision above `after`.

        How far its learners are goes by unnoticed: a large run hears that all the time.
        """
        entry = self._entries[run_id]
        if entry.turn <= after:
            await _wait(entry.turned, timeout_seconds)

    def _named(self, name: str) -> _Entry | None:
        if name == LATEST:
            return next(reversed(self._entries.values()), None)
        return next((entry for entry in self._entries.values() if entry.run.name == name), None)

    def _entry(self, run_id: str) -> _Entry:
        if run_id not in self._entries:
            raise UnknownRunError(f"there is no run {run_id!r}.")
        return self._entries[run_id]

    def _enter(self, run: RunRecord) -> None:
        first = _next_revision(0)
        record = ChangingRun(run, self._save, self._announce)
        self._entries[run.run_id] = _Entry(record, first, first, used_at=self._clock())

    async def _save(self, run: RunRecord, learners: Sequence[LearnerRecord]) -> None:
        await self._database.save_run(run, learners)

    def _announce(self, run: RunRecord, learners: Sequence[LearnerRecord]) -> None:
        entry = self._entries[run.run_id]
        if run.state is not RunState.MERGING:
            entry.ingredients.clear()
        for learner in learners:
            # How far a worker got says nothing of the next one's.
            if learner.state is not LearnerState.LEASED:
                entry.progress.pop(learner.index, None)
        if run.state is not RunState.MERGING:
            entry.ingredients.clear()
        self._turn(run.run_id)
        for on_learners in self._learner_listeners:
            on_learners(run, learners)
        for listener in self._listeners:
            listener(run)

    def _turn(self, run_id: str) -> None:
        self._touch(run_id)
        entry = self._entries[run_id]
        entry.turn = entry.revision
        entry.turned = _woken(entry.turned)

    def _touch(self, run_id: str) -> None:
        entry = self._entries[run_id]
        entry.revision = _next_revision(entry.revision)
        entry.changed = _woken(entry.changed)


def _woken(event: asyncio.Event) -> asyncio.Event:
    # Whoever waits now is woken; whoever comes later waits for the next one.
    event.set()
    return asyncio.Event()


async def _wait(event: asyncio.Event, timeout_seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_seconds):
            await event.wait()


def _next_revision(previous: int) -> int:
    # Milliseconds since 1970, so that a restart goes on above what was seen before.
    return max(previous + 1, int(time() * 1000))
