"""Trainers' queries: runs by name, keys of answers, and manifests of subsets."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from lipt.common.blobs.blob import BlobName
from lipt.common.errors import RunNotReadyError
from lipt.common.inputs.specs import standardized_columns
from lipt.common.states import RunState
from lipt.coordinator.compute.jobs.pretraining import DataDescription
from lipt.coordinator.compute.jobs.selecting import Selected, SelectSubset
from lipt.coordinator.runs.holding import require_going_on, require_own_data
from lipt.coordinator.runs.requests import how_far, require_ready
from lipt.coordinator.runs.store import LATEST, RunStore
from lipt.coordinator.state.records import RunRecord, SubsetRecord
from lipt.core.stages.question import Labels, Sources


@dataclass(frozen=True)
class DiagnosisQuery:
    """A diagnosis query: an empty `run` means the data alone, an empty `proxy` any proxy."""

    run: str = ""
    proxy: str = ""
    features: BlobName | None = None


def find_named(store: RunStore, name: str) -> RunRecord:
    """A run by id or name, in any state; an UnknownRunError if there is none.

    "latest" is the newest ready run, preferably of the served data, or else the newest run.
    """
    newest_first = store.runs()[::-1]
    ready = [run for run in newest_first if name == LATEST and run.state is RunState.READY]
    served = [run for run in ready if not store.held(run.run_id)]
    newest = next(iter(served or ready), None)
    return store.find(name) if newest is None else store.record(newest.run_id)


def find_finished(store: RunStore, name: str) -> RunRecord:
    """The named run (`find_named`) with its theta_p; an error before it has one."""
    run = find_named(store, name)
    require_going_on(store, run)
    require_ready(run, store.activity(run.run_id))
    return run


def find_begun(store: RunStore, name: str) -> RunRecord:
    """The named run with its theta*; an error before it has one."""
    run = store.find(name)
    if run.initial_weights is None:
        require_going_on(store, run)
        raise RunNotReadyError(how_far(run, store.activity(run.run_id)))
    return run


def find_ready(
    store: RunStore, name: str, data: DataDescription, *, or_else: str = ""
) -> RunRecord:
    """The named run with theta_p, on the served data; `or_else` ends the error's remedy."""
    run = find_finished(store, name)
    require_own_data(run, data, or_else=or_else)
    return run


def request_key(question: Sources, run: RunRecord | None, **besides: object) -> str:
    """An answer's key: a hash of exactly its dependencies; `besides` are further ones, as JSON."""
    asked = {name: value for name, value in asdict(question).items() if name != "config"}
    depends_on = {"question": asked, "run": run and run.run_id, **besides}
    return hashlib.sha256(json.dumps(depends_on, sort_keys=True).encode()).hexdigest()


def asked_the_same(subset: SubsetRecord, job: SelectSubset) -> bool:
    """Whether a stored subset answers the job's query, apart from the weights."""
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


def manifest_of(
    run: RunRecord, job: SelectSubset, selected: Selected, data: DataDescription
) -> dict[str, object]:
    """The manifest stored with a subset: run, data, selection and costs."""
    # All selections with a warm-up share it, so its seconds stand apart.
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
            "standardized": standardized_columns(data.inputs),
            "note": data.note,
            "quarantined": list(data.quarantined),
        },
        **selected.told,
        "weights_sha256": job.weights.sha256,
        "features_sha256": job.features and job.features.sha256,
        "costs": run.all_costs | costs,
    }
