"""Diagnoses on demand: computed once, stored, and answered from the store ever after.

A diagnosis needs no run: whitened random patches, and features of the user's own, are had of the
data alone, so that it can be the first thing that is asked of a coordinator. With a run its
learners can look as well. One that the disk has changed or lost is computed again.
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
from lipt.coordinator.compute.jobs.selecting import Diagnosed, DiagnoseData
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
    """What a trainer asks for.

    run: id, name, or "latest" (the newest that is ready); empty for the data alone.
    proxy: what looks at the data; empty for a choice among what is there.
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
        """The diagnosis that answers a query: stored, or computed now.

        Whoever asks for the same one meanwhile waits for the same computation. It is given up
        when all have left.

        Args:
            query: what a trainer asks for.
            on_progress: called while it waits for its turn and is computed.
            caller: who asks; callers take turns.

        Raises:
            UnknownRunError, RunNotReadyError: there is no such run, or no theta_p yet.
            OtherDataError: the run was made on another data set, or what was served has changed.
            ProxyError: there is no such proxy, or it needs a run.
            QueueFullError: too much waits to be computed already.
        """
        features = [query.features.sha256] if query.features else []
        # Whatever their age: they are about to be read, maybe long from now.
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
        job = self._job(query, run)
        key = self._key(job, run)
        stored = await self._database.find_diagnosis(key)
        if stored is not None and await asyncio.to_thread(self._blobs.is_whole, stored.blob):
            return stored
        return await self._flights.run(
            key,
            lambda report, callers: self._diagnose(key, run, job, report, callers),
            on_progress,
            lambda: frozenset({caller}),
        )

    async def stop(self) -> None:
        """Give up what is being computed; nobody can be waiting any more."""
        await self._flights.stop()

    def _job(self, query: DiagnosisQuery, run: RunRecord | None) -> DiagnoseData:
        proxy = Proxy.parse(query.proxy or _DEFAULT_PROXY)
        return DiagnoseData(
            ProxyQuestion(
                config=run.config if run else self._defaults,
                inputs=run.inputs if run else None,
                proxy=proxy,
                weights=run.pretrained_weights if run else None,
                features=query.features,
                trajectories=run.outcome.trajectories if run else None,
                initial=initial_for(proxy, run.outcome) if run else None,
            )
        )

    def _key(self, job: DiagnoseData, run: RunRecord | None) -> str:
        question, config = job.question, job.question.config
        # Of a configuration without a run no more than how numbers are drawn, and sums taken.
        without_run = {"seed": config.seed, "threads": config.evaluation_threads}
        return request_key(
            question,
            run,
            data=self._data.fingerprint,
            config=None if run else without_run,
            backbone=self._backbone if question.proxy.may_use(Kind.BACKBONE) else None,
            versions=versions(),
        )

    async def _diagnose(
        self,
        key: str,
        run: RunRecord | None,
        job: DiagnoseData,
        report: OnProgress,
        callers: Callers,
    ) -> DiagnosisRecord:
        started = monotonic()
        asked = Asked(run.run_id if run else "", callers)
        if run is not None:
            await restore_pretrained_weights(run, self._blobs, self._compute, report, asked)
            if job.question.initial is not None:
                await restore_initial_weights(run, self._blobs, self._compute, report, asked)
        fingerprint = run.fingerprint if run else self._data.fingerprint
        link = run.traceparent if run else ""
        with span("diagnosis", link=link, run_id=asked.run, proxy=str(job.question.proxy)):
            diagnosed = await self._compute.run(OnData(fingerprint, job), report, asked)
        features = job.question.features
        diagnosis = DiagnosisRecord(
            key=key,
            run_id=run.run_id if run else "",
            proxy=str(job.question.proxy),
            num_examples=self._data.num_rows,
            fingerprint=fingerprint,
            features_sha256=features.sha256 if features else "",
            manifest=self._manifest(run, job, diagnosed, seconds=monotonic() - started),
            blob=diagnosed.blob,
            created_at=self._wall_clock(),
        )
        await self._database.save_diagnosis(diagnosis)
        return diagnosis

    def _manifest(
        self, run: RunRecord | None, job: DiagnoseData, diagnosed: Diagnosed, *, seconds: float
    ) -> dict[str, object]:
        question = job.question
        return {
            "run_id": run.run_id if run else "",
            "run_name": run.name if run else "",
            "data": {
                "source": self._data.source,
                "fingerprint": run.fingerprint if run else self._data.fingerprint,
                "num_examples": self._data.num_rows,
            },
            "proxy": str(question.proxy),
            "backbone": self._backbone if question.proxy.may_use(Kind.BACKBONE) else None,
            "features_sha256": question.features and question.features.sha256,
            "device": diagnosed.device,
            "versions": versions(),
            "costs": {"diagnosis_seconds": seconds},
        }
