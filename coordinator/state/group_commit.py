"""Group commit: what waits to be written goes to the disk together, in one transaction.

The disk takes as long for a hundred records as for one. So whatever comes while a transaction is
on its way is the next one, as a whole, and nobody waits longer than for two of them; where little
is written, each action has its own. An action is answered when it is on the disk, never before.

Should a transaction fail, each of its actions is done again, in one of its own: what cannot be
written fails alone, and what the disk still takes is written. An action may so be done twice, and
has to write the same both times.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TypeAlias

Action: TypeAlias = Callable[[sqlite3.Connection], object]
# What an action raised; None where it is on the disk.
Outcome: TypeAlias = Exception | None


class GroupCommit:
    """The transactions of one connection; belongs to the event loop."""

    def __init__(self, connection: sqlite3.Connection, thread: Executor) -> None:
        """Write through `connection`, which lives in `thread`."""
        self._connection = connection
        self._thread = thread
        self._waiting: list[tuple[Action, asyncio.Future[Outcome]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def write(self, action: Action) -> None:
        """Do an action, after all that was asked for earlier; on return it is on the disk.

        Raises:
            Exception: what the action raised, or sqlite3.Error where it could not be committed:
                nothing of it was written.
        """
        written: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting.append((action, written))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_waiting(), name="group commit")
        # A caller that leaves does not take its action along.
        error = await asyncio.shield(written)
        if error is not None:
            raise error

    async def finish(self) -> None:
        """Wait until nothing waits to be written."""
        if self._writing is not None:
            await self._writing

    async def _write_waiting(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            group, self._waiting = self._waiting, []
            actions = [action for action, _ in group]
            try:
                outcomes = await loop.run_in_executor(
                    self._thread, commit_together, self._connection, actions
                )
            except RuntimeError as error:  # the thread has been shut down
                outcomes = (error,) * len(group)
            for (_, written), outcome in zip(group, outcomes, strict=True):
                written.set_result(outcome)
        self._writing = None


def commit_together(
    connection: sqlite3.Connection, actions: Sequence[Action]
) -> tuple[Outcome, ...]:
    """Do all actions in one transaction; where that fails, each in its own.

    Returns:
        What came of each, in their order.
    """
    together = _commit(connection, actions)
    if together is None or len(actions) == 1:
        return (together,) * len(actions)
    return tuple(_commit(connection, [action]) for action in actions)


def _commit(connection: sqlite3.Connection, actions: Sequence[Action]) -> Outcome:
    """BEGIN IMMEDIATE ... COMMIT, or ROLLBACK when an action or the COMMIT raises."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        try:
            for action in actions:
                action(connection)
            connection.execute("COMMIT")
        except BaseException:
            # A full disk has SQLite roll back by itself, sometimes.
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    except Exception as error:  # noqa: BLE001 - it is raised where the action was asked for
        return error
    return None
