"""Subsets on demand: computed once, stored, and answered from the store ever after."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict, dataclass, field
from time import monotonic

import numpy as np

from lipt.common.blobs.name import BlobName
from lipt.common.blobs.store import BlobStore
from lipt.common.devices import versions
from lipt.common.errors import DataError
from lipt.coordinator.compute.jobs import DataDescription
from lipt.coordinator.compute.process import ComputeProcess
from lipt.coordinator.compute.selecting import Selected, SelectSubset
from lipt.coordinator.records import RunRecord, SubsetRecord
from lipt.coordinator.run_book import Activity, RunBook
from lipt.coordinator.runs import require_ready
from lipt.coordinator.selection.registry import find_strategy
from lipt.coordinator.selection.select import resolve_budget
from lipt.coordinator.state.database import Database

# A client that waits hears something at least this often.
_SIGN_OF_LIFE_SECONDS = 5.0
# 12 bytes each, so a message stays below 200 KiB.
_EXAMPLES_PER_PART = 16_384


@dataclass(frozen=True)
class SubsetQuery:
    """What a trainer asks for."""

    run: str
    strategy: str
    fraction: float | None
    budget: int | None
    balanced: bool | None
    options: Mapping[str, str]
    # Other weights of the run's model in place of theta_p.
    weights: BlobName | None


@dataclass(frozen=True)
class SubsetPart:
    """Some of a subset's examples, in ascending order of their indices."""

    indices: np.ndarray
    weights: np.ndarray


@dataclass
class _Computation:
    task: asyncio.Task[SubsetRecord]
    activity: Activity = field(default_factory=Activity)
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Subsets:
    """The subsets of one coordinator."""

    def __init__(
        self,
        book: RunBook,
        database: Database,
        blobs: BlobStore,
        compute: ComputeProcess,
        data: DataDescription,
        *,
        wall_clock: Callable[[], float],
    ) -> None:
        self._book = book
        self._database = database
        self._blobs = blobs
        self._compute = compute
        self._data = data
        self._wall_clock = wall_clock
        self._computations: dict[str, _Computation] = {}

    async def get(self, query: SubsetQuery) -> AsyncIterator[Activity | SubsetRecord]:
        """Progress while the subset is computed, and at last its record.

        Whoever asks for the same subset meanwhile waits for the same computation,
        which goes on when they leave.

        Raises:
            RunNotReadyError: there is no theta_p yet.
            DataError: the run was made on another data set.
            BudgetError, UnknownNameError, StrategyOptionError: what is asked for cannot be.
        """
        run = self._book.find(query.run)
        require_ready(run, self._book.activity(run.run_id))
        if run.fingerprint != self._data.fingerprint:
            raise DataError(
                f"run {run.name} was made on data with fingerprint {run.fingerprint}, this "
                f"coordinator now serves {self._data.source} with {self._data.fingerprint}. "
                "Start the coordinator with the run's own data."
            )
        job = self._job(run, query)
        key = _key(run, job)
        stored = await self._database.find_subset(key)
        if stored is not None:
            yield stored
            return
        computation = self._computations.get(key)
        if computation is None:
            computation = self._begin(key, run, job)
        while not computation.task.done():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SIGN_OF_LIFE_SECONDS):
                    await computation.changed.wait()
            if not computation.task.done():
                yield computation.activity
        yield await asyncio.shield(computation.task)

    async def parts(self, subset: SubsetRecord) -> AsyncIterator[SubsetPart]:
        """A stored subset's examples."""
        content = await asyncio.to_thread(self._blobs.read_bytes, subset.blob)
        indices = np.frombuffer(content, dtype="<i8", count=subset.num_examples)
        weights = np.frombuffer(content, dtype="<f4", offset=indices.nbytes)
        for start in range(0, subset.num_examples, _EXAMPLES_PER_PART):
            part = slice(start, start + _EXAMPLES_PER_PART)
            yield SubsetPart(indices[part], weights[part])

    async def stop(self) -> None:
        """Give up what is being computed; nobody can be waiting any more."""
        tasks = [computation.task for computation in self._computations.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _job(self, run: RunRecord, query: SubsetQuery) -> SelectSubset:
        weights = query.weights or run.pretrained_weights
        if run.image is None or weights is None:
            raise ValueError(f"run {run.run_id} is ready without weights")
        strategy = find_strategy(query.strategy)
        strategy.parse_options(query.options)
        return SelectSubset(
            config=run.config,
            image=run.image,
            weights=weights,
            strategy=strategy.name,
            budget=resolve_budget(
                fraction=query.fraction,
                budget=query.budget,
                num_examples=self._data.num_examples,
            ),
            balanced=strategy.resolve_balance(query.balanced),
            options=tuple(sorted(query.options.items())),
        )

    def _begin(self, key: str, run: RunRecord, job: SelectSubset) -> _Computation:
        task = asyncio.create_task(self._compute_subset(key, run, job), name=f"subset {key[:12]}")
        computation = self._computations[key] = _Computation(task)

        def forget(_: asyncio.Task[SubsetRecord]) -> None:
            self._computations.pop(key, None)
            computation.changed.set()

        task.add_done_callback(forget)
        return computation

    async def _compute_subset(self, key: str, run: RunRecord, job: SelectSubset) -> SubsetRecord:
        started = monotonic()

        def report(text: str, done: int, total: int) -> None:
            computation = self._computations[key]
            computation.activity = Activity(text, done, total)
            # Whoever waits now is woken; whoever comes later waits for the next one.
            computation.changed.set()
            computation.changed = asyncio.Event()

        selected = await self._compute.run(job, report)
        subset = SubsetRecord(
            key=key,
            run_id=run.run_id,
            strategy=job.strategy,
            num_examples=job.budget,
            balanced=job.balanced,
            fingerprint=run.fingerprint,
            # The blob is the very bytes that the digest is defined over.
            digest=selected.blob.sha256,
            weights_sha256=job.weights.sha256,
            manifest=self._manifest(run, job, selected, seconds=monotonic() - started),
            blob=selected.blob,
            created_at=self._wall_clock(),
        )
        await self._database.save_subset(subset)
        return subset

    def _manifest(
        self, run: RunRecord, job: SelectSubset, selected: Selected, *, seconds: float
    ) -> dict[str, object]:
        return {
            "run_id": run.run_id,
            "run_name": run.name,
            "run_config": run.config.model_dump(mode="json"),
            "data": {
                "source": self._data.source,
                "fingerprint": run.fingerprint,
                "num_examples": self._data.num_examples,
            },
            "strategy": job.strategy,
            "options": dict(job.options),
            "budget": job.budget,
            "balanced": job.balanced,
            "weights_sha256": job.weights.sha256,
            "device": selected.device,
            "versions": versions(),
            "costs": {
                **run.costs.model_dump(),
                "bytes_to_workers": run.bytes_to_workers,
                "bytes_from_workers": run.bytes_from_workers,
                "selection_seconds": seconds,
            },
        }


def _key(run: RunRecord, job: SelectSubset) -> str:
    # Everything that the result depends on, and nothing else.
    asked = asdict(job) | {"config": run.config.model_dump(mode="json"), "run": run.run_id}
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
