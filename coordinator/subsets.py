"""Answers for trainers: subsets, diagnoses and weights, each computed once and stored."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import math
from collections.abc import Callable, Coroutine
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from time import monotonic
from typing import Any, Generic, Literal, TypeVar

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.store import BlobStore
from lipt.common.config.run_config import RunConfig
from lipt.common.errors import OtherDataError, StateError, UnknownBlobError
from lipt.common.observability.logs import log_about
from lipt.common.observability.metrics import Meters
from lipt.common.observability.tracing import span
from lipt.common.process.devices import versions
from lipt.common.requests import FeatureKind, Proxy, SubsetRequest
from lipt.common.states import RunState
from lipt.common.subsets import Examples, unpack
from lipt.coordinator.compute.context import DataDescription
from lipt.coordinator.compute.jobs.selection import (
    DiagnoseData,
    RecheckSubset,
    SelectSubset,
    StoredSubset,
)
from lipt.coordinator.compute.messages import JobOptions, OnProgress, Progressed
from lipt.coordinator.compute.queue import ComputeQueue
from lipt.coordinator.compute.scan import scorers_of
from lipt.coordinator.instruments import SELECTION
from lipt.coordinator.runs.availability import find_named, find_ready, not_ready, restore
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import (
    DiagnosisRecord,
    MixtureRecord,
    RunRecord,
    SubsetRecord,
)
from lipt.core.selection.select import find_strategy
from lipt.core.stages.resolve import (
    NeededTraining,
    ResolvedRequest,
    Sources,
    initial_for,
    resolve,
    sources_of,
)

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")
RecordT = TypeVar("RecordT", SubsetRecord, DiagnosisRecord, MixtureRecord)
Callers = Callable[[], frozenset[str]]
Compute = Callable[[OnProgress, Callers], Coroutine[Any, Any, ResultT]]

_MOST_LISTED = 100
_DEFAULT_PROXY = "auto"


@dataclass(eq=False)
class _Flight(Generic[ResultT]):
    latest: Progressed | None = None
    waiters: list[tuple[OnProgress, Callers]] = field(default_factory=list)
    task: asyncio.Task[ResultT] = field(init=False)

    def report(self, progressed: Progressed) -> None:
        self.latest = progressed
        for on_progress, _ in self.waiters:
            on_progress(progressed)

    def callers(self) -> frozenset[str]:
        return frozenset[str]().union(*(callers() for _, callers in self.waiters))


class SingleFlight:
    """The running computations, by key."""

    def __init__(self) -> None:
        self._flights: dict[str, _Flight[Any]] = {}

    async def run(
        self, key: str, compute: Compute[ResultT], on_progress: OnProgress, callers: Callers
    ) -> ResultT:
        """The result of the key's computation; `on_progress` first gets the latest report."""
        flight: _Flight[ResultT] = self._flights.get(key) or self._begin(key, compute)
        if flight.latest is not None:
            on_progress(flight.latest)
        waiter = (on_progress, callers)
        flight.waiters.append(waiter)
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiters.remove(waiter)
            if not flight.waiters:
                self._forget(key, flight)
                flight.task.cancel()

    async def stop(self) -> None:
        tasks = [flight.task for flight in self._flights.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, key: str, compute: Compute[ResultT]) -> _Flight[ResultT]:
        flight = self._flights[key] = _Flight[ResultT]()

        def end(task: asyncio.Task[ResultT]) -> None:
            self._forget(key, flight)
            if not task.cancelled():
                task.exception()  # retrieved even if no caller is left

        computing = compute(flight.report, flight.callers)
        flight.task = asyncio.create_task(computing, name=f"flight {key[:12]}")
        flight.task.add_done_callback(end)
        return flight

    def _forget(self, key: str, flight: _Flight[Any]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]


@dataclass(frozen=True)
class DiagnosisQuery:
    """A diagnosis query: an empty `run` means the data alone, an empty `proxy` any proxy."""

    run: str = ""
    proxy: str = ""
    features: BlobName | None = None


@dataclass(eq=False)
class Answers:
    """The answers of one coordinator."""

    store: RunStore
    database: Database
    blobs: BlobStore
    compute: ComputeQueue
    data: DataDescription
    _: KW_ONLY
    defaults: RunConfig
    wall_clock: Callable[[], float]
    backbone: str | None = None
    max_warm_up_epochs: float = math.inf
    meters: Meters = field(default_factory=Meters)

    def __post_init__(self) -> None:
        self._flights = SingleFlight()
        self._distrusted: set[str] = set()

    async def subset(
        self, request: SubsetRequest, on_progress: OnProgress, caller: str
    ) -> tuple[SubsetRecord, bool]:
        """A subset, and whether it is the request's previous one, which is still valid."""
        callers = always(caller)
        with self.holding(request.weights, request.features, request.mixture, *request.targets):
            run = find_named(self.store, request.run)
            log_about(run=run.run_id)
            held = self.store.held(run.run_id)
            resolved = resolve(
                request,
                run.config,
                num_examples=run.num_examples if held else self.data.num_examples,
                inputs=self.data.inputs,
                kind=self.data.target.kind,
                max_warm_up_epochs=self.max_warm_up_epochs,
            )
            waits = resolved.training is NeededTraining.LEARNERS
            if run.state is not RunState.READY if waits else run.initial_weights is None:
                raise not_ready(self.store, run)
            key, job = self._job(run, resolved)
            previous = None if held else await self._find_previous(run, request, resolved)
            if previous is not None and await self._still_serves(
                run, job, *previous, on_progress, callers
            ):
                return previous[0], True

            async def select(report: OnProgress, waiting: Callers) -> SubsetRecord:
                if held:
                    raise OtherDataError(held)
                return await self._select(key, run, job, report, waiting)

            return await self.once(SubsetRecord, key, select, on_progress, callers), False

    async def diagnosis(
        self, query: DiagnosisQuery, on_progress: OnProgress, caller: str
    ) -> DiagnosisRecord:
        callers = always(caller)
        with self.holding(query.features):
            run = None
            if query.run:
                run = find_ready(self.store, query.run, self.data)
                log_about(run=run.run_id)
            proxy = Proxy.parse(query.proxy or _DEFAULT_PROXY)
            sources = Sources(self.defaults, None, None, query.features)
            if run is not None:
                trained = (run.outcome.trajectories, initial_for(proxy, run.outcome))
                given = (run.config, run.inputs, run.pretrained_weights, query.features)
                sources = Sources(*given, *trained)
            config = sources.config
            backbone = self.backbone if proxy.may_use(FeatureKind.BACKBONE) else None
            # Without a run, only the seed and the threads of sums matter in the configuration.
            without_run = {"seed": config.seed, "threads": config.evaluation_threads}
            key = request_key(
                sources,
                run,
                proxy=str(proxy),
                data=self.data.fingerprint,
                config=None if run else without_run,
                backbone=backbone,
                versions=versions(),
            )
            job = DiagnoseData(sources, proxy)
            return await self.once(
                DiagnosisRecord,
                key,
                lambda report, waiting: self._diagnose(key, run, job, backbone, report, waiting),
                on_progress,
                callers,
            )

    async def find_diagnosis(self, sha256: str) -> DiagnosisRecord:
        """A stored diagnosis by its file's digest; other files' digests are unknown here."""
        diagnosis = await self.database.find_diagnosis(sha256)
        if diagnosis is None:
            raise UnknownBlobError(
                f"there is no diagnosis {sha256[:64]!r}. Ask for a diagnosis again."
            )
        return diagnosis

    async def weights(self, name: str, what: Literal["theta*", "theta_p"], caller: str) -> BlobName:
        run = find_named(self.store, name)
        blob = run.initial_weights if what == "theta*" else run.pretrained_weights
        if blob is None:
            raise not_ready(self.store, run)
        if await self._is_whole(blob):
            return blob
        if held := self.store.held(run.run_id):
            raise OtherDataError(
                f"{what} of run {run.name}, {blob}, was changed or lost by the coordinator's disk, "
                f"and cannot be made again now: {held}"
            )
        await self.restore(run, blob, lambda _: None, always(caller))
        return blob

    async def subsets_of(self, name: str) -> tuple[SubsetRecord, ...]:
        run = find_named(self.store, name)
        return await self.database.find_subsets(run.run_id, most=_MOST_LISTED)

    async def find_subset(self, name: str, digest: str) -> SubsetRecord:
        run = find_named(self.store, name)
        subsets = await self.database.find_subsets(run.run_id, digest)
        if not subsets:
            raise UnknownBlobError(
                f"run {run.name} has no subset {digest[:64]!r}. Ask for one of those listed."
            )
        return subsets[0]

    async def examples(self, subset: SubsetRecord) -> Examples:
        return await asyncio.to_thread(
            lambda: unpack(
                self.blobs.read_bytes(subset.blob), subset.num_examples, subset.num_classes
            )
        )

    async def forget_scores_of(self, credential: str) -> None:
        """Remove subsets with a distrusted credential's scores; repeated requests select again."""
        self._distrusted.add(credential)
        try:
            number = await self.database.remove_subsets_scored_by(credential)
        except StateError as error:
            logger.warning("subsets with scores of %s are kept: %s", credential, error)
        else:
            if number:
                logger.warning("%d subsets with scores of %s are removed", number, credential)

    async def stop(self) -> None:
        await self._flights.stop()

    def holding(self, *uploaded: BlobName | None) -> contextlib.AbstractContextManager[None]:
        # They may be read much later, and must not expire meanwhile.
        return self.blobs.expiry.holding(*(blob.sha256 for blob in uploaded if blob))

    def _job(self, run: RunRecord, request: ResolvedRequest) -> tuple[str, SelectSubset]:
        sources = sources_of(run.outcome, request, backbone=self.backbone)
        asked = {name: value for name, value in asdict(request).items() if name not in _IN_SOURCES}
        revision = find_strategy(request.strategy).revision
        key = request_key(sources, run, request=asked, revision=revision)
        return key, SelectSubset(request, sources)

    async def _find_previous(
        self, run: RunRecord, request: SubsetRequest, resolved: ResolvedRequest
    ) -> tuple[SubsetRecord, BlobName] | None:
        """The previous subset and its weights, if only the weights differ."""
        rechecks = request.previous and request.weights is not None
        if not rechecks or not find_strategy(request.strategy).rechecks:
            return None
        for subset in await self.database.find_subsets(run.run_id, request.previous):
            with contextlib.suppress(UnknownBlobError):
                weights = await asyncio.to_thread(self.blobs.find, subset.weights_sha256)
                key, _ = self._job(run, replace(resolved, weights=weights))
                if key == subset.key:
                    await asyncio.to_thread(self.blobs.use, weights)
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
        inputs, weights = job.sources.model
        recheck = RecheckSubset(run.config, inputs, anchor=anchor, weights=weights)
        with self.blobs.expiry.holding(anchor.sha256):
            checked = await self._flights.run(
                f"recheck {previous.key} {weights.sha256}",
                lambda report, waiting: self.compute.run(
                    recheck, report, job_options(run, waiting)
                ),
                on_progress,
                callers,
            )
        return checked.can_stay

    async def _select(
        self, key: str, run: RunRecord, job: SelectSubset, report: OnProgress, callers: Callers
    ) -> SubsetRecord:
        started, request, sources = monotonic(), job.request, job.sources
        weights = sources.model[1]
        options = replace(job_options(run, callers), light=job.is_light)
        # A span in the caller's trace, linked to the run's.
        with span("selection", link=run.traceparent, run_id=run.run_id) as selection:
            selection.note(run_name=run.name, strategy=request.strategy, budget=request.budget)
            if weights == run.pretrained_weights:
                await self.restore(run, weights, report, callers)
            await self.restore(run, sources.initial, report, callers)
            while True:
                selected = await self.compute.run(job, report, options)
                # Otherwise it had begun on kept signals that were removed since.
                if not self._distrusted & scorers_of(selected.manifest.get("scored_by")):
                    break
            selection.note(num_examples=selected.num_examples, digest=selected.digest)
        # Warm-up time is counted apart: a warm-up serves all later selections.
        seconds = monotonic() - started - selected.spent_warm_up_seconds
        self.meters.observe(SELECTION, seconds, request.strategy)
        subset = SubsetRecord(
            key=key,
            run_id=run.run_id,
            strategy=request.strategy,
            num_examples=selected.num_examples,
            num_classes=selected.num_classes,
            balanced=request.balanced,
            fingerprint=run.fingerprint,
            digest=selected.digest,
            weights_sha256=weights.sha256,
            manifest=manifest_of(run, sources, selected, self.data),
            blob=selected.blob,
            created_at=self.wall_clock(),
        )
        await self.database.save(subset)
        return subset

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
            await self.restore(run, job.sources.weights, report, callers)
            await self.restore(run, job.sources.initial, report, callers)
        fingerprint = run.fingerprint if run else self.data.fingerprint
        proxy, features = str(job.proxy), job.sources.features
        options = JobOptions(run.run_id if run else "", callers, fingerprint=fingerprint)
        link = run.traceparent if run else ""
        with span("diagnosis", link=link, run_id=options.run, proxy=proxy):
            diagnosed = await self.compute.run(job, report, options)
        diagnosis = DiagnosisRecord(
            key=key,
            run_id=options.run,
            proxy=proxy,
            num_examples=self.data.num_rows,
            fingerprint=fingerprint,
            features_sha256=features.sha256 if features else "",
            manifest={
                **origin_of(run, self.data),
                "proxy": proxy,
                "backbone": backbone,
                "features_sha256": features and features.sha256,
                "device": diagnosed.device,
                "versions": versions(),
                "costs": {"diagnosis_seconds": monotonic() - started},
            },
            blob=diagnosed.blob,
            created_at=self.wall_clock(),
        )
        await self.database.save(diagnosis)
        return diagnosis

    async def restore(
        self, run: RunRecord, blob: BlobName | None, report: OnProgress, callers: Callers
    ) -> None:
        if blob is not None:
            await self._flights.run(
                f"restore {blob}",
                lambda report, waiting: restore(
                    run, [blob], self.blobs, self.compute, report, job_options(run, waiting)
                ),
                report,
                callers,
            )

    async def once(
        self,
        kind: type[RecordT],
        key: str,
        compute: Callable[[OnProgress, Callers], Coroutine[Any, Any, RecordT]],
        on_progress: OnProgress,
        callers: Callers,
    ) -> RecordT:
        """The stored answer if its file is intact, or else one shared computation."""
        stored = await self.database.find(kind, key)
        if stored is not None and await self._is_whole(stored.blob):
            return stored
        return await self._flights.run(key, compute, on_progress, callers)

    async def _is_whole(self, blob: BlobName) -> bool:
        return await asyncio.to_thread(self.blobs.is_whole, blob)


def job_options(run: RunRecord, callers: Callers) -> JobOptions:
    return JobOptions(run.run_id, callers, fingerprint=run.fingerprint)


def always(caller: str) -> Callers:
    return lambda: frozenset({caller})


# Parts of a request that its sources, its given options and its needs tell as well.
_IN_SOURCES = {"weights", "features", "probabilities", "training", "options"}


def request_key(sources: Sources, run: RunRecord | None, **besides: object) -> str:
    """An answer's key: a hash of exactly its dependencies; `besides` are further ones, as JSON."""
    inputs = {name: value for name, value in asdict(sources).items() if name != "config"}
    depends_on = {"sources": inputs, "run": run and run.run_id, **besides}
    content = json.dumps(depends_on, sort_keys=True, default=sorted)
    return hashlib.sha256(content.encode()).hexdigest()


def origin_of(run: RunRecord | None, data: DataDescription) -> dict[str, object]:
    name = {"run_id": run.run_id, "run_name": run.name} if run else {"run_id": "", "run_name": ""}
    return {**name, "data": dict(data.facts)}


def manifest_of(
    run: RunRecord, sources: Sources, selected: StoredSubset, data: DataDescription
) -> dict[str, object]:
    # All selections with a warm-up share it, so its seconds stand apart.
    costs = {"selection_seconds": selected.seconds - selected.spent_warm_up_seconds}
    if selected.warm_up_seconds is not None:
        costs["warm_up_seconds"] = selected.warm_up_seconds
    return {
        **origin_of(run, data),
        "run_config": run.config.model_dump(mode="json"),
        **selected.manifest,
        "weights_sha256": sources.weights and sources.weights.sha256,
        "features_sha256": sources.features and sources.features.sha256,
        "costs": run.all_costs | costs,
    }
