"""Mixtures for trainers: a run's sources fitted to a target, each once, and stored."""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import dataclass
from time import monotonic

from pydantic import TypeAdapter

from lipt.common.blobs.blob import BlobName
from lipt.common.config.run_config import ShardRule
from lipt.common.errors import (
    CorruptBlobError,
    InvalidRequestError,
    OtherDataError,
    UnknownBlobError,
)
from lipt.common.observability.logs import log_about
from lipt.common.observability.tracing import span
from lipt.common.process.devices import versions
from lipt.coordinator.compute.jobs.selection import FitMixture
from lipt.coordinator.compute.messages import OnProgress
from lipt.coordinator.runs.availability import find_named, find_ready, require_results
from lipt.coordinator.state.records import MixtureRecord, RunRecord
from lipt.coordinator.subsets import Answers, Callers, always, job_options, origin_of
from lipt.core.mixture.result import MixtureSummary

_MOST_LISTED = 20
# Rows of a shuffled pool are most of a file; its text is parsed in one go.
_MOST_BYTES = 32 * 2**20
_SUMMARY = TypeAdapter(MixtureSummary)


@dataclass(eq=False)
class Mixtures:
    """The mixtures of one coordinator."""

    answers: Answers

    async def mixture(
        self, name: str, target: BlobName, on_progress: OnProgress, caller: str
    ) -> MixtureRecord:
        """The mixture of a ready run's sources for an uploaded target.

        InvalidRequestError for a run that is not by source.
        """
        answers = self.answers
        with answers.holding(target):
            run = find_ready(answers.store, name)
            log_about(run=run.run_id)
            if run.config.learners.shards is not ShardRule.SOURCE:
                raise InvalidRequestError(
                    f"the learners of run {run.name} have random shards, so they tell no sources "
                    "apart. Start a run by source: lipt run start --shards source"
                )
            learners = tuple(result for _, result in run.results)
            elsewhere = {
                learner.own_source: learner.result.num_examples
                for learner in run.learners
                if learner.own_source and learner.result is not None
            }
            job = FitMixture(run.config, *run.theta, learners, target, elsewhere)
            key = mixture_key(run, target)
            held = answers.store.held(run.run_id)

            async def fit(report: OnProgress, waiting: Callers) -> MixtureRecord:
                if held:
                    raise OtherDataError(held)
                return await self._fit(key, run, job, report, waiting)

            return await answers.once(MixtureRecord, key, fit, on_progress, always(caller))

    async def newest(self, name: str) -> list[tuple[MixtureRecord, MixtureSummary | None]]:
        """A run's mixtures, newest first; no summary of a file that is lost or too large."""
        run = find_named(self.answers.store, name)
        records = await self.answers.database.find_mixtures(run.run_id, most=_MOST_LISTED)
        return await asyncio.to_thread(
            lambda: [(record, self._summary(record.blob)) for record in records]
        )

    def _summary(self, file: BlobName) -> MixtureSummary | None:
        if file.size_bytes > _MOST_BYTES:
            return None
        try:
            return _SUMMARY.validate_json(self.answers.blobs.read_bytes(file))
        except (UnknownBlobError, CorruptBlobError, ValueError):
            return None

    async def _fit(
        self, key: str, run: RunRecord, job: FitMixture, report: OnProgress, callers: Callers
    ) -> MixtureRecord:
        answers, started = self.answers, monotonic()
        with span("mixture", link=run.traceparent, run_id=run.run_id, run_name=run.name):
            await require_results(run, answers.blobs)
            await answers.restore(run, job.initial_weights, report, callers)
            blob = await answers.compute.run(job, report, job_options(run, callers))
        record = MixtureRecord(
            key=key,
            run_id=run.run_id,
            fingerprint=run.fingerprint,
            target_sha256=job.target.sha256,
            manifest={
                **origin_of(run, answers.data),
                "target_sha256": job.target.sha256,
                "versions": versions(),
                "costs": run.all_costs | {"mixture_seconds": monotonic() - started},
            },
            blob=blob,
            created_at=answers.wall_clock(),
        )
        await answers.database.save(record)
        return record


def mixture_key(run: RunRecord, target: BlobName) -> str:
    """A mixture's key: it depends on the run and the target alone."""
    content = json.dumps({"mixture": run.run_id, "target": target.sha256})
    return hashlib.sha256(content.encode()).hexdigest()
