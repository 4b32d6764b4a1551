from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.store import BlobStore
from lipt.common.config.run_config import RunConfig
from lipt.common.requests import Budget, LabelUse, Proxy, SubsetRequest
from lipt.common.states import LearnerState, RunState
from lipt.common.subsets import Examples
from lipt.coordinator.compute.jobs.pretraining import InitializeWeights, MakeSoup, SoupResult
from lipt.coordinator.compute.jobs.selection import (
    Diagnosed,
    DiagnoseData,
    RecheckSubset,
    SelectSubset,
    StoredSubset,
)
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import DiagnosisRecord, LearnerResult, SubsetRecord
from lipt.coordinator.subsets import Answers, DiagnosisQuery
from lipt.core.stages.choice import ChosenSubset, request_facts
from lipt.core.stages.recheck import Recheck
from tests.coordinator.fakes import DATA, SOUP_RECORD, FakeCompute
from tests.coordinator.made_up_runs import made_up_run, status

THETA, THETA_P = b"theta*", b"theta_p"
HOLDS = Recheck(1.0, 1.0)


class World:
    """A run "r" that is ready, and a younger one, "young", that has theta* alone."""

    def __init__(self, database: Database, directory: Path) -> None:
        self.store, self.database = RunStore(database), database
        self.blobs = BlobStore(directory, max_blob_bytes=2**20)
        self.compute = FakeCompute(
            {
                InitializeWeights: lambda _: self.blobs.put_bytes(THETA),
                MakeSoup: lambda _: SoupResult(self.upload(THETA_P), SOUP_RECORD, {}),
                RecheckSubset: HOLDS,
                SelectSubset: self.select,
                DiagnoseData: lambda job: Diagnosed(self.upload(str(job.proxy).encode()), "cpu"),
            }
        )
        self.stopped_early = ""
        self.facts: dict[str, Any] | None = None
        self.credentials = ["honest"]
        self.restart(backbone=None)

    def restart(self, backbone: str | None) -> None:
        """Another coordinator of the same state, with that backbone."""
        self.answers = Answers(
            self.store,
            self.database,
            self.blobs,
            self.compute.queue,
            DATA,
            defaults=RunConfig(model="resnet8"),
            wall_clock=count(1.0).__next__,
            backbone=backbone,
        )

    def select(self, job: SelectSubset) -> StoredSubset:
        first = job.sources.model[1].size_bytes
        number = job.request.budget - bool(self.stopped_early)
        manifest = {
            **request_facts(job.request, job.sources, self.facts),
            "stopped_early": self.stopped_early,
            "scored_by": {"credentials": [{"credential": name} for name in self.credentials]},
        }
        examples = Examples(np.arange(first, first + number), np.ones(number, np.float32))
        return StoredSubset.stored(self.blobs, ChosenSubset(examples, manifest))

    async def ask(self, **request: Any) -> SubsetRecord:
        return (await self.ask_again(**request))[0]

    async def ask_again(self, **request: Any) -> tuple[SubsetRecord, bool]:
        """A subset, and whether it is the previous one."""
        wanted = SubsetRequest(run="r", strategy="crest", budget=Budget(number=10))
        if budget := request.pop("budget", None):
            request["budget"] = Budget(number=budget)
        if proxy := request.pop("proxy", ""):
            request["proxy"] = Proxy.parse(proxy)
        request["labels"] = LabelUse.parse(request.get("labels", ""))
        return await self.answers.subset(replace(wanted, **request), lambda _: None, "caller")

    async def diagnose(self, **query: Any) -> DiagnosisRecord:
        return await self.answers.diagnosis(DiagnosisQuery(**query), lambda _: None, "caller")

    def merge_slowly(self) -> tuple[asyncio.Event, asyncio.Event]:
        """Set when a soup has begun, and to be set for it to go on."""
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def merge(_: MakeSoup) -> SoupResult:
            begun.set()
            await go_on.wait()
            return SoupResult(self.upload(THETA_P), SOUP_RECORD, {})

        self.compute.answers[MakeSoup] = merge
        return begun, go_on

    def upload(self, content: bytes) -> BlobName:
        return self.blobs.put_bytes(content)

    def damage(self, content: bytes, *, lose: bool = False) -> None:
        path = self.blobs.path(BlobName.of(content))
        path.unlink() if lose else path.write_bytes(content.swapcase())


@pytest.fixture
async def world(database: Database, tmp_path: Path) -> AsyncIterator[World]:
    world = World(database, tmp_path)
    world.upload(THETA)
    run = made_up_run(state=RunState.READY).changed(pretrained_weights=world.upload(THETA_P))
    # Learner 1 has not come in.
    for index in (0, 2):
        result = BlobName.of(b"result %d" % index)
        done = status(LearnerState.DONE, LearnerResult(blob=result))
        run = run.with_learner(run.learners[index].changed(status=done))
    await world.store.add(run)
    await world.store.add(made_up_run("young"))
    yield world
    await world.answers.stop()
