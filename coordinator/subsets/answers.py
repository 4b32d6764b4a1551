"""Answers for trainers: subsets, diagnoses and weights, each computed once and stored."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from time import monotonic
from typing import Any, TypeVar

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.store import BlobStore
from lipt.common.config.run_config import RunConfig
from lipt.common.errors import OtherDataError, RunNotReadyError, UnknownBlobError
from lipt.common.observability.logs import log_about
from lipt.common.observability.metrics import Meters
from lipt.common.observability.tracing import span
from lipt.common.process.devices import versions
from lipt.common.subsets import Examples, unpack
from lipt.coordinator.compute.jobs.pretraining import DataDescription
from lipt.coordinator.compute.jobs.selecting import (
    DiagnoseData,
    RecheckSubset,
    SelectSubset,
)
from lipt.coordinator.compute.messages import Asked, OnData, OnProgress
from lipt.coordinator.compute.queue import ComputeQueue
from lipt.coordinator.instruments import SELECTION
from lipt.coordinator.runs.holding import require_going_on
from lipt.coordinator.runs.repair import (
    Restore,
    restore_initial_weights,
    restore_pretrained_weights,
)
from lipt.coordinator.runs.requests import how_far
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import DataRecord, DiagnosisRecord, RunRecord, SubsetRecord
from lipt.coordinator.subsets.questions import (
    DiagnosisQuery,
    asked_the_same,
    find_named,
    find_ready,
    manifest_of,
    request_key,
    require_trained,
)
from lipt.coordinator.subsets.single_flight import Callers, SingleFlight
from lipt.core.proxies.proxy import Kind, Proxy
from lipt.core.selection.registry import find_strategy
from lipt.core.stages.question import (
    Sources,
    SubsetQuery,
    initial_for,
    question_of,
    training_for,
)

logger = logging.getLogger(__name__)

RecordT = TypeVar("RecordT", SubsetRecord, DiagnosisRecord)

_MOST_LISTED = 100
_DEFAULT_PROXY = "auto"
_RESTORE: dict[str, Restore] = {
    "theta*": restore_initial_weights,
    "theta_p": restore_pretrained_weights,
}


@dataclass(frozen=True)
class Answer:
    """A subset, and whether it is the query's previous one, which is still valid."""

    subset: SubsetRecord
    kept: bool = False


class Answers:
    """The answers of one coordinator."""

    def __init__(
        self,
        store: RunStore,
        database: Database,
        blobs: BlobStore,
        compute: ComputeQueue,
        data: DataDescription,
        *,
        defaults: RunConfig,
        wall_clock: Callable[[], float],
        linger_seconds: float,
        backbone: str | None = None,
        max_warm_up_epochs: float = math.inf,
        meters: Meters | None = None,
    ) -> None:
        self._store = store
        self._database = database
        self._blobs = blobs
        self._compute = compute
        self._data = data
        self._defaults = defaults
        self._wall_clock = wall_clock
        self._backbone = backbone
        self._max_warm_up_epochs = max_warm_up_epochs
        self._meters = meters or Meters()
        self._flights = SingleFlight(linger_seconds=linger_seconds)

    async def subset(self, query: SubsetQuery, on_progress: OnProgress, caller: str) -> Answer:
        """The subset for a query: stored, the previous one, or computed now."""
        with self._holding(query.weights, query.features):
            return await self._subset(query, on_progress, lambda: frozenset({caller}))

    async def diagnosis(
        self, query: DiagnosisQuery, on_progress: OnProgress, caller: str
    ) -> DiagnosisRecord:
        """The diagnosis for a query, stored or computed now."""
        with self._holding(query.features):
            return await self._diagnosis(query, on_progress, lambda: frozenset({caller}))

    async def initial_weights(self, name: str, caller: str) -> BlobName:
        """The blob of a run's theta*; recomputed if damaged."""
        run = find_named(self._store, name)
        return await self._weights(run, run.initial_weights, "theta*", caller)

    async def pretrained_weights(self, name: str, caller: str) -> BlobName:
        """The blob of a run's theta_p; recomputed if damaged."""
        run = find_named(self._store, name)
        return await self._weights(run, run.pretrained_weights, "theta_p", caller)

    async def subsets_of(self, name: str) -> tuple[SubsetRecord, ...]:
        """The newest subsets of a run (by id, name or "latest"), newest first."""
        run = find_named(self._store, name)
        return await self._database.find_subsets(run.run_id, most=_MOST_LISTED)

    async def find_subset(self, name: str, digest: str) -> SubsetRecord:
        """A run's subset with this digest; an UnknownBlobError if it has none."""
        run = find_named(self._store, name)
        found = await self._database.find_subsets(run.run_id, digest)
        if not found:
            raise UnknownBlobError(
                f"run {run.name} has no subset {digest[:64]!r}. Ask for one of those listed."
            )
        return found[0]

    async def examples(self, subset: SubsetRecord) -> Examples:
        """A subset's examples, ascending, with their weights; a LiptError if damaged."""
        return await asyncio.to_thread(
            lambda: unpack(
                self._blobs.read_bytes(subset.blob), subset.num_examples, subset.num_classes
            )
        )

    async def stop(self) -> None:
        """Drop all computations."""
        await self._flights.stop()

    def _holding(self, *uploaded: BlobName | None) -> contextlib.AbstractContextManager[None]:
        # They may be read much later, and must not expire meanwhile.
        return self._blobs.expiry.holding(*(blob.sha256 for blob in uploaded if blob))

    async def _subset(
        self, query: SubsetQuery, on_progress: OnProgress, callers: Callers
    ) -> Answer:
        run = find_named(self._store, query.run)
        log_about(run=run.run_id)
        held = self._store.held(run.run_id)
        num_examples = await self._num_examples(run, held)
        require_trained(self._store, run, training_for(query, num_examples))
        job = SelectSubset.answering(
            question_of(
                run.outcome,
                query,
                num_examples,
                backbone=self._backbone,
                kind=self._data.target.kind,
                max_warm_up_epochs=self._max_warm_up_epochs,
            )
        )
        previous = None if held else await self._find_previous(run, query, job)
        if previous is not None and await self._still_serves(
            run, job, *previous, on_progress, callers
        ):
            return Answer(previous[0], kept=True)
        key = request_key(job, run, revision=find_strategy(job.strategy).revision)

        async def select(report: OnProgress, waiting: Callers) -> SubsetRecord:
            if held:
                raise OtherDataError(held)
            return await self._select(key, run, job, report, waiting)

        stored = await self._database.find(SubsetRecord, key)
        return Answer(await self._once(key, stored, select, on_progress, callers))

    async def _find_previous(
        self, run: RunRecord, query: SubsetQuery, job: SelectSubset
    ) -> tuple[SubsetRecord, BlobName] | None:
        """The previous subset and its weights, if only the weights differ."""
        asked = query.previous and query.weights is not None
        if not asked or not find_strategy(job.strategy).rechecks:
            return None
        for subset in await self._database.find_subsets(run.run_id, query.previous):
            if asked_the_same(subset, job):
                with contextlib.suppress(UnknownBlobError):
                    weights = await asyncio.to_thread(self._blobs.find, subset.weights_sha256)
                    await asyncio.to_thread(self._blobs.use, weights)
                    return subset, weights
        return None

    async def _still_serves(
        self,
        run: RunRecord,
        job: SelectSubset,
        previous: SubsetRecord,
        anchor: BlobName,
        on_progress: OnProgress,
        callers: Callers,
    ) -> bool:
        recheck = RecheckSubset(job.config, job.inputs, anchor=anchor, weights=job.weights)
        with self._blobs.expiry.holding(anchor.sha256):
            checked = await self._flights.run(
                f"recheck {previous.key} {job.weights.sha256}",
                lambda report, waiting: self._compute.run(
                    OnData(run.fingerprint, recheck), report, Asked(run.run_id, waiting)
                ),
                on_progress,
                callers,
            )
        logger.info(
            "subset %s %s: its weights foretold a loss of %.4g, which is %.4g",
            previous.digest[:12],
            "is kept" if checked.still_serves else "is selected anew",
            checked.predicted_loss,
            checked.actual_loss,
        )
        return checked.still_serves

    async def _num_examples(self, run: RunRecord, held: str) -> int:
        """The number of examples of the run's data, recorded earlier if the run is held."""
        if not held:
            return self._data.num_examples
        known = await self._database.find(DataRecord, run.fingerprint)
        if known is None:
            raise OtherDataError(held)
        return known.num_examples

    async def _select(
        self, key: str, run: RunRecord, job: SelectSubset, report: OnProgress, callers: Callers
    ) -> SubsetRecord:
        started = monotonic()
        asked = Asked(run.run_id, callers, job.cost)
        # A span in the caller's trace, linked to the run's.
        with span("selection", link=run.traceparent, run_id=run.run_id) as selection:
            selection.note(run_name=run.name, strategy=job.strategy, budget=job.budget)
            if job.weights == run.pretrained_weights:
                await self._restore(run, "theta_p", report, callers)
            if job.initial is not None:
                await self._restore(run, "theta*", report, callers)
            selected = await self._compute.run(OnData(run.fingerprint, job), report, asked)
            selection.note(num_examples=selected.num_examples, digest=selected.digest)
        # Warm-up time is counted apart: a warm-up serves all later selections.
        seconds = monotonic() - started - selected.warming_seconds
        self._meters.observe(SELECTION, seconds, job.strategy)
        subset = SubsetRecord(
            key=key,
            run_id=run.run_id,
            strategy=job.strategy,
            num_examples=selected.num_examples,
            num_classes=selected.num_classes,
            balanced=job.balanced,
            fingerprint=run.fingerprint,
            digest=selected.digest,
            weights_sha256=job.weights.sha256,
            manifest=manifest_of(run, job, selected, self._data),
            blob=selected.blob,
            created_at=self._wall_clock(),
        )
        await self._database.save(subset)
        return subset

    async def _diagnosis(
        self, query: DiagnosisQuery, on_progress: OnProgress, callers: Callers
    ) -> DiagnosisRecord:
        run = None
        if query.run:
            or_else = ", or leave the run out"
            run = find_ready(self._store, query.run, self._data, or_else=or_else)
            log_about(run=run.run_id)
        proxy = Proxy.parse(query.proxy or _DEFAULT_PROXY)
        sources = Sources(self._defaults, None, None, query.features)
        if run is not None:
            trained = (run.outcome.trajectories, initial_for(proxy, run.outcome))
            found = (run.config, run.inputs, run.pretrained_weights, query.features)
            sources = Sources(*found, *trained)
        config = sources.config
        backbone = self._backbone if proxy.may_use(Kind.BACKBONE) else None
        # Without a run, only the seed and the threads of sums matter in the configuration.
        without_run = {"seed": config.seed, "threads": config.evaluation_threads}
        key = request_key(
            sources,
            run,
            proxy=str(proxy),
            data=self._data.fingerprint,
            config=None if run else without_run,
            backbone=backbone,
            versions=versions(),
        )
        job = DiagnoseData(sources, proxy)
        stored = await self._database.find(DiagnosisRecord, key)
        return await self._once(
            key,
            stored,
            lambda report, waiting: self._diagnose(key, run, job, backbone, report, waiting),
            on_progress,
            callers,
        )

    async def _diagnose(
        self,
        key: str,
        run: RunRecord | None,
        job: DiagnoseData,
        backbone: str | None,
        report: OnProgress,
        callers: Callers,
    ) -> DiagnosisRecord:
        started = monotonic()
        if run is not None:
            await self._restore(run, "theta_p", report, callers)
            if job.sources.initial is not None:
                await self._restore(run, "theta*", report, callers)
        fingerprint = run.fingerprint if run else self._data.fingerprint
        proxy, features = str(job.proxy), job.sources.features
        asked = Asked(run.run_id if run else "", callers)
        link = run.traceparent if run else ""
        with span("diagnosis", link=link, run_id=asked.run, proxy=proxy):
            diagnosed = await self._compute.run(OnData(fingerprint, job), report, asked)
        diagnosis = DiagnosisRecord(
            key=key,
            run_id=asked.run,
            proxy=proxy,
            num_examples=self._data.num_rows,
            fingerprint=fingerprint,
            features_sha256=features.sha256 if features else "",
            manifest={
                "run_id": asked.run,
                "run_name": run.name if run else "",
                "data": {
                    "source": self._data.source,
                    "fingerprint": fingerprint,
                    "num_examples": self._data.num_rows,
                },
                "proxy": proxy,
                "backbone": backbone,
                "features_sha256": features and features.sha256,
                "device": diagnosed.device,
                "versions": versions(),
                "costs": {"diagnosis_seconds": monotonic() - started},
            },
            blob=diagnosed.blob,
            created_at=self._wall_clock(),
        )
        await self._database.save(diagnosis)
        return diagnosis

    async def _weights(
        self, run: RunRecord, name: BlobName | None, what: str, caller: str
    ) -> BlobName:
        if name is None:
            require_going_on(self._store, run)
            raise RunNotReadyError(how_far(run, self._store.activity(run.run_id)))
        if await self._is_whole(name):
            return name
        if held := self._store.held(run.run_id):
            raise OtherDataError(
                f"{what} of run {run.name}, {name}, was changed or lost by the coordinator's disk, "
                f"and cannot be made again now: {held}"
            )
        await self._restore(run, what, lambda _: None, lambda: frozenset({caller}))
        return name

    async def _restore(
        self, run: RunRecord, what: str, report: OnProgress, callers: Callers
    ) -> None:
        """Recompute damaged theta* or theta_p, once for all concurrent callers."""
        await self._flights.run(
            f"{what} {run.run_id}",
            lambda report, waiting: _RESTORE[what](
                run, self._blobs, self._compute, report, Asked(run.run_id, waiting)
            ),
            report,
            callers,
        )

    async def _once(
        self,
        key: str,
        stored: RecordT | None,
        compute: Callable[[OnProgress, Callers], Coroutine[Any, Any, RecordT]],
        on_progress: OnProgress,
        callers: Callers,
    ) -> RecordT:
        """The stored answer if its file is intact, or else one shared computation."""
        if stored is not None and await self._is_whole(stored.blob):
            return stored
        return await self._flights.run(key, compute, on_progress, callers)

    async def _is_whole(self, blob: BlobName) -> bool:
        return await asyncio.to_thread(self._blobs.is_whole, blob)
