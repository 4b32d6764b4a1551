"""Diagnoses on demand: computed once, stored, and answered from the store.

A diagnosis needs no run: random patches, and the user's own features, need the data alone. With a
run its learners can look as well. One that the disk has changed or lost is computed again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.store import BlobStore
from lipt.common.config.run_config import RunConfig
from lipt.common.observability.logs import log_about
from lipt.common.observability.tracing import span
from lipt.common.process.devices import versions
from lipt.coordinator.compute.jobs.pretraining import DataDescription
from lipt.coordinator.compute.jobs.selecting import DiagnoseData
from lipt.coordinator.compute.messages import Asked, OnData
from lipt.coordinator.compute.progress import OnProgress
from lipt.coordinator.compute.queue import ComputeQueue
from lipt.coordinator.runs.repair import restore_initial_weights, restore_pretrained_weights
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import DiagnosisRecord, RunRecord
from lipt.coordinator.subsets.ready_runs import find_ready
from lipt.coordinator.subsets.service import request_key
from lipt.coordinator.subsets.single_flight import Callers, SingleFlight
from lipt.core.proxies.proxy import Kind, Proxy
from lipt.core.stages.proxy import ProxyQuestion
from lipt.core.stages.question import initial_for

_DEFAULT_PROXY = "auto"


@dataclass(frozen=True)
class DiagnosisQuery:
    """A trainer's question.

    run: id, name, or "latest" (the newest that is ready); empty for the data alone.
    proxy: empty for a choice among those available.
    features: the user's own.
    """

    run: str = ""
    proxy: str = ""
    features: BlobName | None = None


class Diagnoses:
    """The diagnoses of one coordinator."""

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
    ) -> None:
        self._store = store
        self._database = database
        self._blobs = blobs
        self._compute = compute
        self._data = data
        self._defaults = defaults
        self._wall_clock = wall_clock
        self._backbone = backbone
        self._flights = SingleFlight(linger_seconds=linger_seconds)

    async def get(
        self, query: DiagnosisQuery, on_progress: OnProgress, caller: str
    ) -> DiagnosisRecord:
        """The diagnosis that answers a query: stored, or computed now; shared as in `Subsets.get`.

        Raises:
            UnknownRunError, RunNotReadyError: there is no such run, or no theta_p yet.
            OtherDataError: the run was made on other data, or the served data has changed.
            ProxyError: there is no such proxy, or it needs a run.
            QueueFullError: too much waits to be computed already.
        """
        features = [query.features.sha256] if query.features else []
        # They may be read long from now, and must not expire.
        with self._blobs.expiry.holding(*features):
            return await self._get(query, on_progress, caller)

    async def _get(
        self, query: DiagnosisQuery, on_progress: OnProgress, caller: str
    ) -> DiagnosisRecord:
        run = None
        if query.run:
            or_else = ", or leave the run out"
            run = find_ready(self._store, query.run, self._data, or_else=or_else)
            log_about(run=run.run_id)
        proxy = Proxy.parse(query.proxy or _DEFAULT_PROXY)
        question = ProxyQuestion(
            config=run.config if run else self._defaults,
            inputs=run.inputs if run else None,
            proxy=proxy,
            weights=run.pretrained_weights if run else None,
            features=query.features,
            trajectories=run.outcome.trajectories if run else None,
            initial=initial_for(proxy, run.outcome) if run else None,
        )
        key = self._key(question, run)
        stored = await self._database.find(DiagnosisRecord, key)
        if stored is not None and await asyncio.to_thread(self._blobs.is_whole, stored.blob):
            return stored
        return await self._flights.run(
            key,
            lambda report, callers: self._diagnose(key, run, question, report, callers),
            on_progress,
            lambda: frozenset({caller}),
        )

    async def stop(self) -> None:
        """Drop all computations."""
        await self._flights.stop()

    def _key(self, question: ProxyQuestion, run: RunRecord | None) -> str:
        config = question.config
        # Without a run the configuration says no more than how numbers are drawn, and sums taken.
        without_run = {"seed": config.seed, "threads": config.evaluation_threads}
        return request_key(
            question,
            run,
            data=self._data.fingerprint,
            config=None if run else without_run,
            backbone=self._backbone_of(question),
            versions=versions(),
        )

    def _backbone_of(self, question: ProxyQuestion) -> str | None:
        return self._backbone if question.proxy.may_use(Kind.BACKBONE) else None

    async def _diagnose(
        self,
        key: str,
        run: RunRecord | None,
        question: ProxyQuestion,
        report: OnProgress,
        callers: Callers,
    ) -> DiagnosisRecord:
        started = monotonic()
        asked = Asked(run.run_id if run else "", callers)
        if run is not None:
            await restore_pretrained_weights(run, self._blobs, self._compute, report, asked)
            if question.initial is not None:
                await restore_initial_weights(run, self._blobs, self._compute, report, asked)
        fingerprint = run.fingerprint if run else self._data.fingerprint
        proxy, features = str(question.proxy), question.features
        link = run.traceparent if run else ""
        with span("diagnosis", link=link, run_id=asked.run, proxy=proxy):
            job = OnData(fingerprint, DiagnoseData(question))
            diagnosed = await self._compute.run(job, report, asked)
        manifest: dict[str, object] = {
            "run_id": asked.run,
            "run_name": run.name if run else "",
            "data": {
                "source": self._data.source,
                "fingerprint": fingerprint,
                "num_examples": self._data.num_rows,
            },
            "proxy": proxy,
            "backbone": self._backbone_of(question),
            "features_sha256": features and features.sha256,
            "device": diagnosed.device,
            "versions": versions(),
            "costs": {"diagnosis_seconds": monotonic() - started},
        }
        diagnosis = DiagnosisRecord(
            key=key,
            run_id=asked.run,
            proxy=proxy,
            num_examples=self._data.num_rows,
            fingerprint=fingerprint,
            features_sha256=features.sha256 if features else "",
            manifest=manifest,
            blob=diagnosed.blob,
            created_at=self._wall_clock(),
        )
        await self._database.save(diagnosis)
        return diagnosis
