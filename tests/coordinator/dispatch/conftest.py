from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lipt.common.observability.logs import EventKind, Events
from lipt.common.states import LearnerState
from lipt.coordinator.dispatch.dispatcher import Dispatcher
from lipt.coordinator.dispatch.leases import LearnerGrant, LearnerLease, RangeGrant
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import RunRecord
from tests.clock import Clock
from tests.coordinator.fakes import joined


class Bench:
    def __init__(self, database: Database) -> None:
        self.clock = Clock()
        self.events = Events()
        self.database = database
        self.store = RunStore(self.database)
        self.dispatcher = self.new_dispatcher()

    def new_dispatcher(self) -> Dispatcher:
        return Dispatcher(
            self.store,
            lease_seconds=30.0,
            clock=self.clock,
            wall_clock=lambda: 1000.0 + self.clock.now,
            events=self.events,
        )

    async def restart(self) -> None:
        self.store = RunStore(self.database)
        await self.store.load()
        self.dispatcher = self.new_dispatcher()
        self.dispatcher.restore()

    def join(self, name: str, **facts: Any) -> str:
        return joined(self.dispatcher.workers, name, **facts).worker_id

    async def acquire(self, worker_id: str, wait_seconds: float = 0.0) -> LearnerGrant | None:
        """A learner, where there is one in time."""
        granted = await self.dispatcher.next_work(worker_id, wait_seconds=wait_seconds)
        assert not isinstance(granted, RangeGrant)
        return granted

    async def take(self, worker_id: str) -> LearnerLease:
        granted = await self.acquire(worker_id)
        assert granted is not None
        return granted.lease

    async def leased(self, run: RunRecord) -> LearnerLease:
        await self.store.add(run)
        return await self.take(self.join("a"))

    def state(self, index: int = 0) -> LearnerState:
        return self.store.find("r").learners[index].state

    async def expire(self) -> None:
        before = self.events.count(EventKind.LEASE_EXPIRED)
        task = asyncio.create_task(self.dispatcher.expire_leases())
        async with asyncio.timeout(10.0):
            while self.events.count(EventKind.LEASE_EXPIRED) == before:  # noqa: ASYNC110
                await asyncio.sleep(0)
        task.cancel()


@pytest.fixture
async def bench(database: Database) -> Bench:
    return Bench(database)
