"""Identity of an answer: the key that it is stored under, and the manifest of how it came about."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Any

from lipt.coordinator.compute.jobs.pretraining import DataDescription
from lipt.coordinator.compute.jobs.selecting import Selected, SelectSubset
from lipt.coordinator.state.records import RunRecord, SubsetRecord
from lipt.core.selection.without_labels import Labels
from lipt.core.stages.choice import Question
from lipt.core.stages.proxy_features import ProxyQuestion


def request_key(
    question: Question | ProxyQuestion, run: RunRecord | None, **besides: object
) -> str:
    """What an answer is stored under: a hash of all that it depends on, and of nothing else.

    Args:
        question: what is asked. Its configuration is a run's own for good, so that the run's id
            stands for it.
        run: that it is asked of, if of any.
        besides: what else the answer depends on, as JSON.
    """
    asked = {name: value for name, value in asdict(question).items() if name != "config"}
    depends_on = {"question": asked, "run": run and run.run_id, **besides}
    return hashlib.sha256(json.dumps(depends_on, sort_keys=True).encode()).hexdigest()


def asked_the_same(subset: SubsetRecord, job: SelectSubset) -> bool:
    """Whether a stored subset was selected as the job would, whatever the weights."""
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
    return same and (proxy["proxy"], proxy.get("backbone")) == (job.judged_by, job.backbone)


def manifest_of(
    run: RunRecord, job: SelectSubset, selected: Selected, data: DataDescription
) -> dict[str, object]:
    """What is told and kept of a subset besides its examples.

    Args:
        run: that it was selected for.
        job: which selected it.
        selected: its result.
        data: what it was selected from.
    """
    # A warm-up is shared by all who choose by it, and so its seconds stand apart.
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
