"""Run store: runs in memory; changes are ordered, and visible only once durable."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic, time
from typing import TypeAlias

from lipt.common.errors import RunNotReadyError, UnknownRunError, UnreadableRunError
from lipt.common.states import LearnerPhase, LearnerState, RunState
from lipt.coordinator.compute.messages import Progressed
from lipt.coordinator.runs.transitions import LossCurve
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import LearnerRecord, RunRecord, RunSummary
from lipt.core.results import Ingredient

logger = logging.getLogger(__name__)

Change: TypeAlias = Callable[[RunRecord], RunRecord]
# Called with a run and its changed learners once they are durable and visible.
OnDurable: TypeAlias = Callable[[RunRecord, Sequence[LearnerRecord]], None]

LATEST = "latest"


@dataclass(frozen=True)
class LearnerProgress:
    """A worker's last progress report of its learner; in memory only."""

    phase: LearnerPhase = LearnerPhase.UNKNOWN
    step: int = 0
    loss: float = 0.0


class LiveRun:
    """A stored run that may change, with its progress; used in the event loop only.

    Each change builds on the previous one, durable or not, so a check inside a change holds until
    it is durable. Changes that arrive during a write are written together after it. Callers are
    answered once everything they read is durable. If a write fails, all changes built on it are
    dropped. A cancelled caller cancels no change.
    """

    def __init__(
        self, run: RunRecord, database: Database, on_durable: OnDurable, revision: int = 0
    ) -> None:
        self.shown = run
        # Revision of the last change other than progress.
        self.updated_at = revision
        self.activity = Progressed()
        self.progress: dict[int, LearnerProgress] = {}
        self.losses: dict[int, LossCurve] = {}
        # Ingredients of the soup being made.
        self.ingredients: dict[int, Ingredient] = {}
        # Set at the next change, then replaced.
        self.changed = asyncio.Event()
        self._database = database
        self._on_durable = on_durable
        self._latest = run
        # Futures of the current write and of the next one.
        self._writing: asyncio.Future[None] | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._writer: asyncio.Task[None] | None = None

    @property
    def settled(self) -> bool:
        """Whether all changes are durable and visible."""
        return self._writer is None

    async def update(self, change: Change) -> RunRecord:
        """Apply a change durably, and return the record; if it raises, nothing changes."""
        try:
            new = change(self._latest)
        except Exception:
            await self._settled()
            raise
        if new != self._latest:
            self._latest = new
            if self._waiting is None:
                self._waiting = asyncio.get_running_loop().create_future()
            if self._writer is None:
                self._writer = asyncio.create_task(self._write(), name=f"writing {new.run_id}")
        await self._settled()
        return new

    async def _settled(self) -> None:
        outcome = self._waiting or self._writing
        if outcome is not None:
            await asyncio.shield(outcome)

    async def _write(self) -> None:
        while self._waiting is not None:
            written, self._waiting = self._waiting, None
            self._writing = written
            run, learners = self._latest, changed_learners(self.shown, self._latest)
            try:
                await self._database.save_run(run, learners)
            except Exception as error:  # noqa: BLE001 - raised in the callers of `update`
                self._latest = self.shown
                failed, self._waiting = (written, self._waiting), None
                for outcome in failed:
                    if outcome is not None:
                        outcome.set_exception(error)
                        # Taken here, too: asyncio would log the one of cancelled callers.
                        outcome.exception()
                continue
            self.shown = run
            # Callers continue in a later turn of the loop, after the listeners.
            written.set_result(None)
            try:
                self._on_durable(run, learners)
            except Exception:
                logger.exception("a listener to changes of run %s has failed", run.run_id)
        self._writing = self._writer = None


def changed_learners(old: RunRecord, new: RunRecord) -> list[LearnerRecord]:
    # Nearly all are the same objects; comparing their fields is slow.
    before = old.learners + (None,) * (len(new.learners) - len(old.learners))
    return [
        learner
        for was, learner in zip(before, new.learners, strict=False)
        if was is not learner and was != learner
    ]


@dataclass(slots=True)
class _Entry:
    summary: RunSummary
    revision: int
    used_at: float
    held: str = ""


class RunStore:
    """The runs of one coordinator: open ones in memory, ended ones read on request."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = monotonic) -> None:
        self._database, self._clock = database, clock
        self._entries: dict[str, _Entry] = {}
        # In the same order; an ended run stays until its end is written.
        self._live: dict[str, LiveRun] = {}
        self._listeners: list[OnDurable] = []

    async def load(self) -> None:
        """Read the runs of earlier processes; only summaries of ended ones."""
        for summary in await self._database.load_summaries():
            self._note(summary)
            if summary.problem:
                logger.error("%s", summary.problem)
            if not summary.state.ended:
                with contextlib.suppress(UnreadableRunError):  # logged, and shown as such
                    self._make_live(self.record(summary.run_id))

    def runs(self) -> tuple[RunSummary, ...]:
        return tuple(entry.summary for entry in self._entries.values())

    def live(self) -> tuple[RunRecord, ...]:
        shown = (live.shown for live in self._live.values())
        return tuple(run for run in shown if not run.state.ended)

    def record(self, run_id: str) -> RunRecord:
        """A run's record; does not count as a use of the run."""
        live, entry = self._live.get(run_id), self._entries.get(run_id)
        if live is not None:
            return live.shown
        if entry is not None and entry.summary.problem:
            raise UnreadableRunError(entry.summary.problem)
        try:
            run = None if entry is None else self._database.read_run(run_id)
        except UnreadableRunError as error:
            logger.error("%s", error)  # noqa: TRY400 - said in full
            self._entries[run_id].summary = self._entries[run_id].summary.unreadable(str(error))
            self._touch(run_id)
            raise
        if run is None:
            raise UnknownRunError(f"there is no run {run_id!r}.")
        return run

    def find(self, key: str) -> RunRecord:
        """A run by id or name; "latest" is the newest. Raises like `record`."""
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
        ids = (run.run_id for run in self.runs() if run.request_id == request_id)
        run_id = next(ids, None)
        return None if run_id is None else self.record(run_id)

    def listen(self, listener: OnDurable) -> None:
        """Call `listener` after every durable change, or once for several together."""
        self._listeners.append(listener)

    async def add(self, run: RunRecord) -> None:
        await self._database.save_run(run, run.learners)
        self._note(RunSummary.of(run))
        self._make_live(run)
        self._announce(run, run.learners)

    async def update(self, run_id: str, change: Change) -> RunRecord:
        run = self.find(run_id)
        live = self._live.get(run.run_id) or self._make_live(run)
        try:
            return await live.update(change)
        finally:
            self._retire(run.run_id)

    async def remove(self, run_id: str) -> None:
        entry = self._entries.get(run_id)
        if entry is None:
            raise UnknownRunError(f"there is no run {run_id!r}.")
        run = entry.summary
        if run.problem:
            raise UnreadableRunError(run.problem)
        if not run.state.ended:
            raise RunNotReadyError(
                f"run {run.name} is {run.state.value}, and only runs that have ended are removed. "
                "Cancel it first."
            )
        await self._database.remove_run(run_id)
        self._entries.pop(run_id, None)
        self._live.pop(run_id, None)

    def idle_seconds(self, run_id: str) -> float:
        return self._clock() - self._entries[run_id].used_at

    def activity(self, run_id: str) -> Progressed:
        live = self._live.get(run_id)
        return live.activity if live else Progressed()

    def set_activity(self, run_id: str, activity: Progressed) -> None:
        if live := self._live.get(run_id):
            live.activity = activity
            self._touch(run_id)

    def held(self, run_id: str) -> str:
        """Why the run is held (its data is not served); empty if it is not."""
        return self._entries[run_id].held

    def hold(self, run_id: str, reason: str) -> None:
        if self._entries[run_id].held != reason:
            self._entries[run_id].held = reason
            self._note_update(run_id)

    def release(self, run_id: str) -> None:
        if self._entries[run_id].held:
            self._entries[run_id].held = ""
            self._announce(self.record(run_id), ())

    def shown_state(self, run: RunRecord | RunSummary) -> RunState:
        """The run's public state: HELD while it is held and has not ended."""
        waits = not run.state.ended and self.held(run.run_id)
        return RunState.HELD if waits else run.state

    def progress(self, run_id: str, index: int) -> LearnerProgress:
        live = self._live.get(run_id)
        return live.progress.get(index, LearnerProgress()) if live else LearnerProgress()

    def set_progress(self, run_id: str, index: int, progress: LearnerProgress) -> None:
        live = self._live.get(run_id)
        if live and live.progress.get(index) != progress:
            live.progress[index] = progress
            live.losses[index] = self.losses(run_id, index).after(
                progress.step, progress.loss, num_steps=live.shown.config.learners.num_steps
            )
            self._touch(run_id)

    def losses(self, run_id: str, index: int) -> LossCurve:
        """The losses that a learner's worker has reported so far."""
        live = self._live.get(run_id)
        return live.losses.get(index, LossCurve()) if live else LossCurve()

    def ingredient(self, run_id: str, learner: LearnerRecord) -> Ingredient | None:
        """A learner's part in the soup, also of a soup being made."""
        live = self._live.get(run_id)
        making = live.ingredients.get(learner.index) if live else None
        return learner.ingredient or making

    def set_ingredient(self, run_id: str, index: int, ingredient: Ingredient) -> None:
        if live := self._live.get(run_id):
            live.ingredients[index] = ingredient
            self._touch(run_id)

    def revision(self, run_id: str) -> int:
        """The run's revision: grows with every change, also across restarts."""
        return self._entries[run_id].revision

    async def wait_for_change(self, run_id: str, after: int, *, timeout_seconds: float) -> int:
        entry = self._entries[run_id]
        await self._wait(run_id, lambda: entry.revision > after, timeout_seconds)
        return entry.revision

    async def wait_for_update(self, run_id: str, after: int, *, timeout_seconds: float) -> None:
        live = self._live.get(run_id)
        await self._wait(
            run_id, lambda: live is not None and live.updated_at > after, timeout_seconds
        )

    async def _wait(self, run_id: str, is_due: Callable[[], bool], timeout_seconds: float) -> None:
        live = self._live.get(run_id)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                while not is_due():
                    await (live.changed if live else asyncio.Event()).wait()

    def _named(self, name: str) -> _Entry | None:
        if name == LATEST:
            newest_first = reversed(self._entries.values())
            return next((entry for entry in newest_first if not entry.summary.problem), None)
        return next((entry for entry in self._entries.values() if entry.summary.name == name), None)

    def _note(self, summary: RunSummary) -> None:
        self._entries[summary.run_id] = _Entry(summary, _next_revision(0), used_at=self._clock())

    def _make_live(self, run: RunRecord) -> LiveRun:
        revision = self._entries[run.run_id].revision
        live = self._live[run.run_id] = LiveRun(run, self._database, self._announce, revision)
        return live

    def _retire(self, run_id: str) -> None:
        live = self._live.get(run_id)
        if live and live.settled and live.shown.state.ended:
            del self._live[run_id]

    def _announce(self, run: RunRecord, learners: Sequence[LearnerRecord]) -> None:
        self._entries[run.run_id].summary = RunSummary.of(run)
        if live := self._live.get(run.run_id):
            if run.state is not RunState.MERGING:
                live.ingredients.clear()
            for learner in learners:
                # The next worker starts from zero.
                if learner.state is not LearnerState.LEASED:
                    live.progress.pop(learner.index, None)
                    live.losses.pop(learner.index, None)
        self._note_update(run.run_id)
        for listener in self._listeners:
            listener(run, learners)
        if run.state.ended:
            # After its writer is done; the caller may have been cancelled.
            asyncio.get_running_loop().call_soon(self._retire, run.run_id)

    def _note_update(self, run_id: str) -> None:
        self._touch(run_id)
        if live := self._live.get(run_id):
            live.updated_at = self._entries[run_id].revision

    def _touch(self, run_id: str) -> None:
        entry = self._entries[run_id]
        entry.revision = _next_revision(entry.revision)
        if live := self._live.get(run_id):
            # Wakes the current waiters; later ones wait for the next event.
            live.changed.set()
            live.changed = asyncio.Event()


def _next_revision(previous: int) -> int:
    # Milliseconds since 1970: after a restart, revisions continue above earlier ones.
    return max(previous + 1, int(time() * 1000))
