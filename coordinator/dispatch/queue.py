"""Worker queue: workers that wait for a learner; who has asked longest is served first."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Set as AbstractSet

from lipt.coordinator.dispatch.assignment import AssignmentKey


class WorkerQueue:
    """Long polls in the order in which their workers began to ask.

    A worker whose poll ends without a learner keeps its place for the next one.
    """

    def __init__(self) -> None:
        self._turns: dict[str, asyncio.Future[AssignmentKey]] = {}
        self._places: dict[str, int] = {}
        self._next_place = itertools.count()

    def worker_ids(self) -> AbstractSet[str]:
        """Who waits at this moment."""
        return self._turns.keys()

    def in_order(self) -> list[str]:
        """Who waits at this moment, the next to be served first."""
        return sorted(self._turns, key=self._places.__getitem__)

    def join(self, worker_id: str) -> asyncio.Future[AssignmentKey]:
        """A worker's turn, which is done when it is served; an earlier poll's is cancelled."""
        earlier = self._turns.pop(worker_id, None)
        if earlier is not None:
            earlier.cancel()
        if worker_id not in self._places:
            self._places[worker_id] = next(self._next_place)
        turn: asyncio.Future[AssignmentKey] = asyncio.get_running_loop().create_future()
        self._turns[worker_id] = turn
        return turn

    def leave(self, worker_id: str, turn: asyncio.Future[AssignmentKey]) -> None:
        """End a poll; harmless where the worker was served, or has asked again."""
        if self._turns.get(worker_id) is turn:
            del self._turns[worker_id]

    def serve(self, worker_id: str, key: AssignmentKey) -> bool:
        """Give a waiting worker a learner; False where its poll has just been cancelled."""
        turn = self._turns.pop(worker_id)
        if turn.done():
            return False
        del self._places[worker_id]
        turn.set_result(key)
        return True
