"""Changes: one run's record, in memory as it will be, and shown as it is on the disk.

A change is a function from the record to the next one. Changes follow each other at once, each upon
what the one before it made, whether or not that is durable yet; what comes while a record is being
written is written as one record after it. So a check inside a change (is this lease still its
worker's?) holds until the change is durable: whatever was asked for since was built upon it. And

- what is shown is durable, and so is all that a caller is told, a refusal as well;
- a record that could not be written falls, with all that was built upon it: each of the changes
  raises, and the next one begins with what is durable;
- a caller that leaves takes nothing back: its change is made, as if the answer had been lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from lipt.coordinator.state.records import LearnerRecord, RunRecord

logger = logging.getLogger(__name__)

Change: TypeAlias = Callable[[RunRecord], RunRecord]
# Writes a run's new record, with those of its learners that changed.
Save: TypeAlias = Callable[[RunRecord, Sequence[LearnerRecord]], Awaitable[None]]
# Told of the same, once it is durable and shown.
OnDurable: TypeAlias = Callable[[RunRecord, Sequence[LearnerRecord]], None]


class ChangingRun:
    """A run that is on disk already; belongs to the event loop.

    Attributes:
        shown: its durable record.
    """

    def __init__(self, run: RunRecord, save: Save, on_durable: OnDurable) -> None:
        """Begin with a durable record."""
        self.shown = run
        self._save = save
        self._on_durable = on_durable
        # The record with all changes so far.
        self._latest = run
        # What comes of the record that is being written, and of the next; None for none.
        self._writing: asyncio.Future[None] | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._writer: asyncio.Task[None] | None = None

    @property
    def settled(self) -> bool:
        """Whether all changes are durable, and shown."""
        return self._writer is None

    async def update(self, change: Change) -> RunRecord:
        """Apply a change, durably; what `change` raises leaves the run as it was.

        Returns:
            The record as the change left it; later ones may be shown by now.

        Raises:
            Exception: what `change` raised, or else why it could not be written.
        """
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
        """Return once all changes so far are durable; raises why they cannot be."""
        outcome = self._waiting or self._writing
        if outcome is not None:
            await asyncio.shield(outcome)

    async def _write(self) -> None:
        while self._waiting is not None:
            written, self._waiting = self._waiting, None
            self._writing = written
            run, learners = self._latest, changed_learners(self.shown, self._latest)
            try:
                await self._save(run, learners)
            except Exception as error:  # noqa: BLE001 - it is raised where the changes were asked for
                self._latest = self.shown
                fallen, self._waiting = (written, self._waiting), None
                for outcome in fallen:
                    if outcome is not None:
                        outcome.set_exception(error)
                continue
            self.shown = run
            # Before those who asked go on, which is in a later turn of the loop.
            written.set_result(None)
            try:
                self._on_durable(run, learners)
            except Exception:
                logger.exception("what follows from a change of run %s has failed", run.run_id)
        self._writing = self._writer = None


def changed_learners(old: RunRecord, new: RunRecord) -> list[LearnerRecord]:
    """The learners of `new` that `old` does not have so."""
    # Nearly all are the very same objects; comparing their fields takes its time.
    before = old.learners + (None,) * (len(new.learners) - len(old.learners))
    return [
        learner
        for was, learner in zip(before, new.learners, strict=False)
        if was is not learner and was != learner
    ]
