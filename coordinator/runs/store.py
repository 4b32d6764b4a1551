"""Run store: records of runs, changed in order and seen once they are durable."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic, time

from lipt.common.errors import RunNotReadyError, UnknownRunError
from lipt.common.states import LearnerPhase, LearnerState, RunState
from lipt.coordinator.runs.changes import Change, ChangingRun, OnDurable
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import LearnerRecord, RunRecord, RunSummary
from lipt.core.results import Ingredient

# Kept runs: the ended runs that were asked for last; whoever asks for one asks for more of it.

# A run of four learners takes some 40 KB, a learner some 3 KB of it.
_MOST_RUNS = 250
_MOST_LEARNERS = 5_000


class KeptRuns:
    """Records in memory, of a bounded number of runs and learners; the one asked for last stays."""

    def __init__(self, *, most_runs: int = _MOST_RUNS, most_learners: int = _MOST_LEARNERS) -> None:
        self._most_runs, self._most_learners = most_runs, most_learners
        # The one that was asked for last comes last.
        self._runs: OrderedDict[str, RunRecord] = OrderedDict()
        self._num_learners = 0

    def __len__(self) -> int:
        return len(self._runs)

    def find(self, run_id: str) -> RunRecord | None:
        """A run that is kept."""
        if run_id not in self._runs:
            return None
        self._runs.move_to_end(run_id)
        return self._runs[run_id]

    def keep(self, run: RunRecord) -> None:
        """Keep a run's record; those that nobody has asked for the longest make room."""
        self.forget(run.run_id)
        self._runs[run.run_id] = run
        self._num_learners += len(run.learners)
        while len(self._runs) > 1 and (
            len(self._runs) > self._most_runs or self._num_learners > self._most_learners
        ):
            self.forget(next(iter(self._runs)))

    def forget(self, run_id: str) -> None:
        """Keep a run's record no more; harmless where it is not kept."""
        run = self._runs.pop(run_id, None)
        if run is not None:
            self._num_learners -= len(run.learners)


# Run store: runs as they are now, written to the database before anybody sees a change.
#
# Those that have not ended are in memory as a whole. Of the others there may be very many: memory
# has their summaries, and their records are read where they are asked for. What a change is, and
# what holds of it, is in `lipt.coordinator.runs.store`. Changes of one run that come while it is
# being written are written together, and are seen as one.

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


@dataclass(slots=True)
class _Entry:
    """What memory has of every run."""

    summary: RunSummary
    revision: int
    # When it was last asked for.
    used_at: float
    held: str = ""


@dataclass
class _Live:
    """What it has besides of a run that may change."""

    record: ChangingRun
    # The revision at which more has changed last than how far the run is.
    turn: int
    activity: Activity = Activity()
    progress: dict[int, LearnerProgress] = field(default_factory=dict)
    # Of the soup that is being made.
    ingredients: dict[int, Ingredient] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    turned: asyncio.Event = field(default_factory=asyncio.Event)


class RunStore:
    """The runs of one coordinator."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = monotonic) -> None:
        self._database, self._clock = database, clock
        self._entries: dict[str, _Entry] = {}
        # The same order; those that have not ended, and those whose end is being written.
        self._live: dict[str, _Live] = {}
        self._kept = KeptRuns()
        self._learner_listeners: list[OnDurable] = []
        self._listeners: list[Callable[[RunRecord], None]] = []

    async def load(self) -> None:
        """Read what earlier processes left: of runs that have ended, no record."""
        summaries = await self._database.load_summaries()
        unfinished = [summary.run_id for summary in summaries if not summary.state.ended]
        for summary in summaries:
            self._note(summary)
        for run in await self._database.load_runs(unfinished):
            self._make_live(run)

    def runs(self) -> tuple[RunSummary, ...]:
        """Summaries of all runs, oldest first."""
        return tuple(entry.summary for entry in self._entries.values())

    def live(self) -> tuple[RunRecord, ...]:
        """The runs that have not ended, oldest first."""
        shown = (live.record.shown for live in self._live.values())
        return tuple(run for run in shown if not run.state.ended)

    def record(self, run_id: str) -> RunRecord:
        """A run's record; who looks at many runs does not count as asking for one of them.

        Raises:
            UnknownRunError: there is no such run.
            StateError: it has ended, and its record cannot be read.
        """
        live = self._live.get(run_id)
        if live is not None:
            return live.record.shown
        run = self._kept.find(run_id)
        if run is None and run_id in self._entries:
            run = self._database.read_run(run_id)
            if run is not None:
                self._kept.keep(run)
        if run is None:
            raise UnknownRunError(f"there is no run {run_id!r}.")
        return run

    def find(self, key: str) -> RunRecord:
        """A run by id or name; "latest" is the newest.

        Raises:
            UnknownRunError: there is none; the sentence names the newest ones.
            StateError: as `record`.
        """
        entry = self._entries.get(key) or self._named(key)
        if entry is not None:
            entry.used_at = self._clock()
            return self.record(entry.summary.run_id)
        known = ", ".join(run.name for run in self.runs()[:-6:-1])
        raise UnknownRunError(
            f"there is no run {key!r}; the newest are: {known}."
            if known
            else f"there is no run {key!r}, nor any other yet. Start one: lipt run start"
        )

    def find_request(self, request_id: str) -> RunRecord | None:
        """The run that a request id started."""
        ids = (run.run_id for run in self.runs() if run.request_id == request_id)
        run_id = next(ids, None)
        return None if run_id is None else self.record(run_id)

    def listen(self, listener: Callable[[RunRecord], None]) -> None:
        """Call `listener` after every durable change, or after several that were made at once."""
        self._listeners.append(listener)

    def listen_to_learners(self, listener: OnDurable) -> None:
        """The same, with the learners that have changed; before those who `listen`."""
        self._learner_listeners.append(listener)

    async def add(self, run: RunRecord) -> None:
        """Store a new run."""
        await self._database.save_run(run, run.learners)
        self._note(RunSummary.of(run))
        self._make_live(run)
        self._announce(run, run.learners)

    async def update(self, run_id: str, change: Change) -> RunRecord:
        """Apply a change, durably; what `change` raises leaves the run as it was.

        Returns:
            The run as the change left it; later ones may have changed it since.

        Raises:
            UnknownRunError: there is no such run.
            StateError: it could not be written, nor could what was built upon it.
        """
        run = self.find(run_id)
        live = self._live.get(run.run_id) or self._make_live(run)
        try:
            return await live.record.update(change)
        finally:
            self._retire(run.run_id)

    async def remove(self, run_id: str) -> None:
        """Remove an ended run, with all that is on record of it.

        Raises:
            UnknownRunError: there is no such run.
            RunNotReadyError: it has not ended.
            StateError: it could not be removed; it is there as before.
        """
        run = self._entry(run_id).summary
        if not run.state.ended:
            raise RunNotReadyError(
                f"run {run.name} is {run.state.value}, and only runs that have ended are removed. "
                "Cancel it first."
            )
        await self._database.remove_run(run_id)
        self._entries.pop(run_id, None)
        self._live.pop(run_id, None)
        self._kept.forget(run_id)

    def idle_seconds(self, run_id: str) -> float:
        """How long nobody has asked for the run.

        Raises:
            UnknownRunError: there is no such run.
        """
        return self._clock() - self._entry(run_id).used_at

    def activity(self, run_id: str) -> Activity:
        """What the run is doing now."""
        live = self._live.get(run_id)
        return live.activity if live else Activity()

    def set_activity(self, run_id: str, activity: Activity) -> None:
        """Say what the run is doing now; of one that has ended nothing is kept."""
        if live := self._live.get(run_id):
            live.activity = activity
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
            self._announce(self.record(run_id), ())

    def shown_state(self, run: RunRecord | RunSummary) -> RunState:
        """The run's state as peers see it: that of its record, unless it cannot leave it now."""
        waits = not run.state.ended and self.held(run.run_id)
        return RunState.HELD if waits else run.state

    def progress(self, run_id: str, index: int) -> LearnerProgress:
        """What is known of a learner that is being trained."""
        live = self._live.get(run_id)
        return live.progress.get(index, LearnerProgress()) if live else LearnerProgress()

    def set_progress(self, run_id: str, index: int, progress: LearnerProgress) -> None:
        """Note what a worker said of its learner."""
        live = self._live.get(run_id)
        if live and live.progress.get(index) != progress:
            live.progress[index] = progress
            self._touch(run_id)

    def ingredient(self, run_id: str, learner: LearnerRecord) -> Ingredient | None:
        """A learner's part in the soup, also in one that is being made."""
        live = self._live.get(run_id)
        making = live.ingredients.get(learner.index) if live else None
        return learner.ingredient or making

    def set_ingredient(self, run_id: str, index: int, ingredient: Ingredient) -> None:
        """Note what became of a learner that was offered to the soup being made."""
        if live := self._live.get(run_id):
            live.ingredients[index] = ingredient
            self._touch(run_id)

    def revision(self, run_id: str) -> int:
        """Grows with every change; also across restarts."""
        return self._entries[run_id].revision

    async def wait_for_change(self, run_id: str, after: int, *, timeout_seconds: float) -> int:
        """The run's revision once it is above `after`, or at the time-out."""
        entry, live = self._entries[run_id], self._live.get(run_id)
        if entry.revision <= after:
            await _wait(live.changed if live else asyncio.Event(), timeout_seconds)
        return entry.revision

    async def wait_for_turn(self, run_id: str, after: int, *, timeout_seconds: float) -> None:
        """Wait until the record has changed, or whether it is held, at a revision above `after`.

        How far its learners are goes by unnoticed: a large run hears that all the time.
        """
        live = self._live.get(run_id)
        if live is None or live.turn <= after:
            await _wait(live.turned if live else asyncio.Event(), timeout_seconds)

    def _named(self, name: str) -> _Entry | None:
        if name == LATEST:
            return next(reversed(self._entries.values()), None)
        return next((entry for entry in self._entries.values() if entry.summary.name == name), None)

    def _entry(self, run_id: str) -> _Entry:
        if run_id not in self._entries:
            raise UnknownRunError(f"there is no run {run_id!r}.")
        return self._entries[run_id]

    def _note(self, summary: RunSummary) -> None:
        self._entries[summary.run_id] = _Entry(summary, _next_revision(0), used_at=self._clock())

    def _make_live(self, run: RunRecord) -> _Live:
        record = ChangingRun(run, self._save, self._announce)
        live = self._live[run.run_id] = _Live(record, self._entries[run.run_id].revision)
        return live

    def _retire(self, run_id: str) -> None:
        """Keep no more than others have of a run whose end is on the disk, and shown."""
        live = self._live.get(run_id)
        if live and live.record.settled and live.record.shown.state.ended:
            del self._live[run_id]
            self._kept.keep(live.record.shown)

    async def _save(self, run: RunRecord, learners: Sequence[LearnerRecord]) -> None:
        await self._database.save_run(run, learners)

    def _announce(self, run: RunRecord, learners: Sequence[LearnerRecord]) -> None:
        self._entries[run.run_id].summary = RunSummary.of(run)
        if live := self._live.get(run.run_id):
            if run.state is not RunState.MERGING:
                live.ingredients.clear()
            for learner in learners:
                # How far a worker got says nothing of the next one's.
                if learner.state is not LearnerState.LEASED:
                    live.progress.pop(learner.index, None)
        self._turn(run.run_id)
        for on_learners in self._learner_listeners:
            on_learners(run, learners)
        for listener in self._listeners:
            listener(run)
        if run.state.ended:
            # Once its writer is done; whoever asked for the change may have left.
            asyncio.get_running_loop().call_soon(self._retire, run.run_id)

    def _turn(self, run_id: str) -> None:
        self._touch(run_id)
        if live := self._live.get(run_id):
            live.turn = self._entries[run_id].revision
            live.turned = _woken(live.turned)

    def _touch(self, run_id: str) -> None:
        entry = self._entries[run_id]
        entry.revision = _next_revision(entry.revision)
        if live := self._live.get(run_id):
            live.changed = _woken(live.changed)


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
