"""A coordinator's parts around a compute process that a test plays: jobs are answered at once."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from inspect import isawaitable
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.store import BlobStore
from lipt.common.config.settings import load_settings
from lipt.common.states import RunState
from lipt.common.subsets import Examples
from lipt.common.tensor_files import Weights, pack
from lipt.coordinator.access.caller import worker_id_of
from lipt.coordinator.app import App, open_app
from lipt.coordinator.compute.context import DataDescription
from lipt.coordinator.compute.jobs.pretraining import (
    CutShards,
    DescribeData,
    InitializeWeights,
    InitialWeights,
    MakeSoup,
    SoupResult,
)
from lipt.coordinator.compute.jobs.selection import SelectSubset, StoredSubset
from lipt.coordinator.compute.messages import JobOptions, OnProgress, Progressed
from lipt.coordinator.compute.process import Resident
from lipt.coordinator.compute.queue import Computation, ComputeQueue
from lipt.coordinator.dispatch.leases import LearnerGrant, LearnerLease
from lipt.coordinator.dispatch.workers import WorkerRecord, WorkerRegistry
from lipt.coordinator.settings import CoordinatorSettings, with_own_modules
from lipt.coordinator.state.records import LearnerRecord, LearnerResult, RunRecord, SoupRecord
from lipt.core.pretraining.results import Ingredient
from lipt.core.stages.choice import ChosenSubset
from lipt.data.inputs.specs import ImageSpec, InputSpec
from tests.coordinator.made_up_runs import IMAGE


def described(class_counts: Sequence[int], inputs: InputSpec) -> DataDescription:
    """Data with these classes, which are named by their numbers."""
    names = tuple(map(str, range(len(class_counts))))
    facts = {"source": "fake", "fingerprint": "f" * 64}
    return DataDescription("fake", names, tuple(class_counts), inputs, "f" * 64, facts=facts)


DATA = described((50,) * 10, ImageSpec(1, 8, 8))
BY_ITSELF = JobOptions()
# What `tests.tiny:linear` has.
THETA: Weights = {"1.weight": torch.arange(640.0).reshape(10, 64) + 1, "1.bias": torch.ones(10)}

SOUP_RECORD = SoupRecord(
    initial_accuracy=0.1,
    mean_learner_accuracy=0.5,
    best_learner_accuracy=0.5,
    soup_accuracy=0.5,
    num_kept=1,
    num_validation_examples=10,
)


class FakeCompute:
    """Answers jobs by their class: with a result, an error to raise, or a function of the job."""

    def __init__(self, answers: Mapping[type, object] | None = None) -> None:
        self.answers: dict[type, object] = dict(answers or {})
        self.jobs: list[Any] = []
        self.fingerprints: list[str] = []
        self.options: list[JobOptions] = []
        self.known: object = None
        self.stopped = False

    @property
    def queue(self) -> ComputeQueue:
        """Itself, as those see it who have jobs."""
        return cast("ComputeQueue", cast("Any", self))

    @property
    def kinds(self) -> list[str]:
        return [type(job).__name__ for job in self.jobs]

    async def run(
        self, job: Any, on_progress: OnProgress = lambda _: None, options: JobOptions = BY_ITSELF
    ) -> Any:
        if options.fingerprint:
            self.fingerprints.append(options.fingerprint)
        self.jobs.append(job)
        self.options.append(options)
        on_progress(Progressed("computing", 1, 2))
        answer = self.answers[type(job)]
        if callable(answer):
            answer = answer(job)
        if isinstance(answer, Exception):
            raise answer
        made = await answer if isawaitable(answer) else answer
        options.took(1.0)
        return made

    memory_limit_bytes = 2**30

    def resident(self) -> Mapping[str, Resident]:
        return {"dear": Resident(now_bytes=5, peak_bytes=7)}

    def open_light(self, known: object) -> None:
        self.known = known

    def computations(self) -> tuple[Computation, ...]:
        return ()

    async def stop(self) -> None:
        self.stopped = True


class Hanging:
    """A job that is never done."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.given_up = False

    async def __call__(self, job: object) -> None:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.given_up = True


def pretraining(state_dir: Path) -> FakeCompute:
    """One that describes `DATA` and carries runs of `tests.tiny:linear` to soup and subsets."""
    blobs = BlobStore(state_dir, max_blob_bytes=2**20)

    def cut(job: CutShards) -> tuple[LearnerRecord, ...]:
        return tuple(
            LearnerRecord(index=index, density=1.0, shard=blobs.put_bytes(b"shard %d" % index))
            for index in range(job.config.learners.num_learners)
        )

    def merge(job: MakeSoup) -> SoupResult:
        parts = {
            n: Ingredient(position=n, accuracy=0.5, alpha=0.5, kept=True, soup_accuracy=0.5)
            for n in range(len(job.learners))
        }
        theta_p = blobs.put_bytes(b"the soup of %d" % len(parts))
        return SoupResult(theta_p, SOUP_RECORD.changed(num_kept=len(parts)), parts)

    def select(job: SelectSubset) -> StoredSubset:
        budget = job.request.budget
        examples = Examples(np.arange(budget), np.ones(budget, np.float32))
        return StoredSubset.stored(blobs, ChosenSubset(examples, {}))

    return FakeCompute(
        {
            DescribeData: DATA,
            InitializeWeights: lambda _: InitialWeights(blobs.put_bytes(pack(THETA)), IMAGE),
            CutShards: cut,
            MakeSoup: merge,
            SelectSubset: select,
        }
    )


def make_settings(directory: Path, **flags: Any) -> CoordinatorSettings:
    """Those of a coordinator of this fake's data and model, with its state in `directory`/state."""
    given = {
        "listen": "127.0.0.1:0",
        "state_dir": directory / "state",
        "dataset": {"source": "fake"},
        "run": {
            "model": "tests.tiny:linear",
            "learners": {"num_learners": 2, "num_minibatches": 1, "batch_size": 16},
            "pruning": {"method": "none"},
        },
    }
    return with_own_modules(
        load_settings(CoordinatorSettings, config=None, flags={**given, **flags})
    )


@asynccontextmanager
async def opened(
    settings: CoordinatorSettings, compute: FakeCompute | None = None
) -> AsyncIterator[App]:
    played = compute or pretraining(settings.state_dir)
    async with open_app(settings, make_compute=lambda *_: played.queue) as app:
        yield app


def joined(registry: WorkerRegistry, secret: str, **facts: Any) -> WorkerRecord:
    """A worker of that name and secret, registered with some facts."""
    known = {"name": secret, "device": "cpu", "versions": {}, "allowed_modules": ()}
    worker = WorkerRecord(worker_id_of(secret), **(known | facts))
    return registry.register(worker, secret)


class FakeWorker:
    """Takes learners of an app, and submits results that are not read."""

    RESULT = LearnerResult(blob=BlobName.of(b"learner"), loss=1.0, train_seconds=1.0)

    def __init__(self, app: App, name: str = "one") -> None:
        self._dispatcher = app.dispatcher
        workers = app.dispatcher.workers
        self.worker_id = joined(workers, name, allowed_modules=("tests.tiny",)).worker_id

    async def take(self) -> LearnerLease:
        while True:
            granted = await self._dispatcher.next_work(self.worker_id, wait_seconds=60.0)
            if isinstance(granted, LearnerGrant):
                return granted.lease

    async def hand_in(self, taken: LearnerLease) -> None:
        await self._dispatcher.commit(taken, self.RESULT)


async def until(app: App, name: str, reached: Callable[[RunRecord], bool]) -> RunRecord:
    while not reached(run := app.store.find(name)):
        revision = app.store.revision(run.run_id)
        await app.store.wait_for_change(run.run_id, revision, timeout_seconds=60.0)
    return run


async def complete(app: App, name: str) -> RunRecord:
    worker = FakeWorker(app)
    for _ in range(2):
        await worker.hand_in(await worker.take())
    final = await until(app, name, lambda run: run.state.ended)
    assert final.state is RunState.READY, final.message
    return final
