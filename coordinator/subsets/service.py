"""Subset service: a subset is computed once per question, stored, and answered from the store.

One that the disk has changed or lost is computed again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from time import monotonic
from typing import Any

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.store import BlobStore
from lipt.common.errors import OtherDataError, UnknownBlobError
from lipt.common.observability.logs import log_about
from lipt.common.observability.metrics import Meters
from lipt.common.observability.tracing import span
from lipt.common.subsets import Examples, unpack
from lipt.coordinator.compute.jobs.pretraining import DataDescription
from lipt.coordinator.compute.jobs.selecting import RecheckSubset, Selected, SelectSubset
from lipt.coordinator.compute.messages import Asked, Cost, OnData
from lipt.coordinator.compute.progress import OnProgress
from lipt.coordinator.compute.queue import ComputeQueue
from lipt.coordinator.instruments import SELECTION
from lipt.coordinator.runs.repair import (
    Restore,
    restore_initial_weights,
    restore_pretrained_weights,
)
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import DataRecord, RunRecord, SubsetRecord
from lipt.coordinator.subsets.ready_runs import find_begun, find_finished, find_named
from lipt.coordinator.subsets.single_flight import Callers, SingleFlight
from lipt.core.selection.registry import find_strategy
from lipt.core.selection.request_rules import Labels
from lipt.core.stages.choice import Question
from lipt.core.stages.proxy import ProxyQuestion
from lipt.core.stages.question import SubsetQuery, needs_no_learners, question_of

logger = logging.getLogger(__name__)

_MOST_LISTED = 100


def request_key(
    question: Question | ProxyQuestion, run: RunRecord | None, **besides: object
) -> str:
    """The key of an answer: a hash of all that it depends on, and of nothing else.

    Args:
        question: its configuration is the run's for good, so the run's id stands for it.
        run: of the question, if any.
        besides: other dependencies, as JSON.
    """
    asked = {name: value for name, value in asdict(question).items() if name != "config"}
    depends_on = {"question": asked, "run": run and run.run_id, **besides}
    return hashlib.sha256(json.dumps(depends_on, sort_keys=True).encode()).hexdigest()


def asked_the_same(subset: SubsetRecord, job: SelectSubset) -> bool:
    """Whether a stored subset answers the job's question, whatever the weights."""
    manifest = subset.manifest
    proxy: Any = manifest["proxy"]
    asked = {
        "strategy": job.strategy,
        "options": dict(job.options),
        "labels": str(job.labels or Labels.GIVEN),
        "budget": job.budget,
        "balanced": job.balanced,
        "features_sha256": job.features and job.features.sha256,
    }
    same = all(manifest[name] == value for name, value in asked.items())
    same = same and (manifest["soft_labels"] is None) == (job.teacher is None)
    return same and (proxy["proxy"], proxy.get("backbone")) == (job.judged_by, job.backbone)


def _manifest_of(
    run: RunRecord, job: SelectSubset, selected: Selected, data: DataDescription
) -> dict[str, object]:
    # A warm-up is shared by all who choose by it, so its seconds stand apart.
    costs = {"selection_seconds": selected.seconds - selected.warming_seconds}
    if selected.warm_up_seconds is not None:
        costs["warm_up_seconds"] = selected.warm_up_seconds
    return {
        "run_id": run.run_id,
        "run_name": run.name,
        "run_config": run.config.model_dump(mode="json"),
        "data": {
            "source": data.source,
            "fingerprint": run.fingerprint,
            "num_examples": data.num_rows,
            "quarantined": list(data.quarantined),
        },
        **selected.told,
        "weights_sha256": job.weights.sha256,
        "features_sha256": job.features and job.features.sha256,
        "costs": run.all_costs | costs,
    }


@dataclass(frozen=True)
class Answer:
    """A subset, and whether it is the query's previous one, which still serves."""

    subset: SubsetRecord
    kept: bool = False


class Subsets:
    """The subsets of one coordinator."""

    def __init__(
        self,
        store: RunStore,
        database: Database,
        blobs: BlobStore,
        compute: ComputeQueue,
        data: DataDescription,
        *,
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
        self._wall_clock = wall_clock
        self._backbone = backbone
        self._max_warm_up_epochs = max_warm_up_epochs
        self._meters = meters or Meters()
        self._flights = SingleFlight(linger_seconds=linger_seconds)

    async def get(self, query: SubsetQuery, on_progress: OnProgress, caller: str) -> Answer:
        """The subset that answers a query: stored, kept, or computed now.

        Callers with the same question share one computation, which is dropped when all have left.

        Args:
            query: the question.
            on_progress: called while the answer waits for its turn and is computed.
            caller: callers take turns.

        Raises:
            RunNotReadyError: there is no theta_p yet.
            OtherDataError: the run was made on other data, and the subset is not stored.
            BudgetError, UnknownNameError, StrategyOptionError, ProxyError, InvalidRequestError,
                SignalsError: the query is invalid.
            QueueFullError: too much waits to be computed already.
        """
        uploaded = [blob.sha256 for blob in (query.weights, query.features) if blob]
        # They may be read long from now, and must not expire.
        with self._blobs.expiry.holding(*uploaded):
            return await self._get(query, on_progress, lambda: frozenset({caller}))

    async def _get(self, query: SubsetQuery, on_progress: OnProgress, callers: Callers) -> Answer:
        find = find_begun if needs_no_learners(query) else find_finished
        run = find(self._store, query.run)
        log_about(run=run.run_id)
        held = self._store.held(run.run_id)
        job = SelectSubset.answering(
            question_of(
                run.outcome,
                query,
                await self._num_examples(run, held),
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
        stored = await self._database.find(SubsetRecord, key)
        if stored is not None and await asyncio.to_thread(self._blobs.is_whole, stored.blob):
            return Answer(stored)
        if held:
            raise OtherDataError(held)
        subset = await self._flights.run(
            key,
            lambda report, waiting: self._selection(key, run, job, report, waiting),
            on_progress,
            callers,
        )
        return Answer(subset)

    async def of_run(self, name: str) -> tuple[SubsetRecord, ...]:
        """The newest subsets of a run (by id, name or "latest"), newest first."""
        run = find_named(self._store, name)
        return await self._database.list_subsets(run.run_id, most=_MOST_LISTED)

    async def find(self, name: str, digest: str) -> SubsetRecord:
        """A run's subset of this digest; an UnknownBlobError where it has none."""
        run = find_named(self._store, name)
        found = await self._database.find_subsets(run.run_id, digest)
        if not found:
            raise UnknownBlobError(
                f"run {run.name} has no subset {digest[:64]!r}. Ask for one of those listed."
            )
        return found[0]

    async def examples(self, subset: SubsetRecord) -> Examples:
        """All examples of a subset, ascending, and their weights.

        Raises:
            LiptError: its blob is gone, or damaged.
        """
        return await asyncio.to_thread(
            lambda: unpack(
                self._blobs.read_bytes(subset.blob), subset.num_examples, subset.num_classes
            )
        )

    async def stop(self) -> None:
        """Drop all computations."""
        await self._flights.stop()

    async def _find_previous(
        self, run: RunRecord, query: SubsetQuery, job: SelectSubset
    ) -> tuple[SubsetRecord, BlobName] | None:
        """The previous subset and its weights, if it answers the same question on others."""
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
        """How many examples the run's data has; noted earlier where the run is held."""
        if not held:
            return self._data.num_examples
        known = await self._database.find(DataRecord, run.fingerprint)
        if known is None:
            raise OtherDataError(held)
        return known.num_examples

    async def _selection(
        self, key: str, run: RunRecord, job: SelectSubset, report: OnProgress, callers: Callers
    ) -> SubsetRecord:
        # In the caller's trace, with a link to the run's.
        with span("selection", link=run.traceparent, run_id=run.run_id) as selection:
            selection.note(run_name=run.name, strategy=job.strategy, budget=job.budget)
            subset = await self._compute_subset(key, run, job, report, callers)
            selection.note(num_examples=subset.num_examples, digest=subset.digest)
            return subset

    async def _compute_subset(
        self, key: str, run: RunRecord, job: SelectSubset, report: OnProgress, callers: Callers
    ) -> SubsetRecord:
        started = monotonic()
        asked = Asked(run.run_id, callers, job.cost)
        # Labels need no theta_p.
        if job.weights == run.pretrained_weights and job.cost is not Cost.LABELS:
            await self._restore(run, "theta_p", restore_pretrained_weights, report, callers)
        if job.initial is not None:
            await self._restore(run, "theta*", restore_initial_weights, report, callers)
        selected = await self._compute.run(OnData(run.fingerprint, job), report, asked)
        # A warm-up's seconds are counted apart, for all who choose by it.
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
            manifest=_manifest_of(run, job, selected, self._data),
            blob=selected.blob,
            created_at=self._wall_clock(),
        )
        await self._database.save(subset)
        return subset

    async def _restore(
        self, run: RunRecord, what: str, restore: Restore, report: OnProgress, callers: Callers
    ) -> None:
        """Restore weights, once for all who ask at the same time."""
        await self._flights.run(
            f"{what} {run.run_id}",
            lambda report, waiting: restore(
                run, self._blobs, self._compute, report, Asked(run.run_id, waiting)
            ),
            report,
            callers,
        )
