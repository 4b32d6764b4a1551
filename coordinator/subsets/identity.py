"""Identity of an answer: the key that it is stored under, and the manifest of how it came about."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Any

from lipt.common.process.devices import versions
from lipt.coordinator.compute.jobs.pretraining import DataDescription
from lipt.coordinator.compute.jobs.selecting import Selected, SelectSubset
from lipt.coordinator.state.records import RunRecord, SubsetRecord
from lipt.core.proxies.proxy import SOUP
from lipt.core.selection.without_labels import Labels
from lipt.core.stages.choosing import Question
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
    same = all(manifest[name] == value for name, value in _asked_of(job).items())
    return same and (proxy["proxy"], proxy.get("backbone")) == (_proxy_of(job), job.backbone)


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
        **_asked_of(job),
        "preset": job.preset,
        "proxy": {
            "proxy": _proxy_of(job),
            **({"backbone": job.backbone} if job.backbone else {}),
            **(selected.proxy or {}),
        },
        "stopped_early": selected.stopped_early,
        "findings": dict(selected.findings),
        "weights_sha256": job.weights.sha256,
        "device": selected.device,
        "versions": versions(),
        "costs": run.all_costs | _costs(selected),
    }


def _asked_of(job: SelectSubset) -> dict[str, object]:
    return {
        "strategy": job.strategy,
        "options": dict(job.options),
        "labels": str(job.labels or Labels.GIVEN),
        "budget": job.budget,
        "balanced": job.balanced,
        "features_sha256": job.features and job.features.sha256,
    }


def _proxy_of(job: SelectSubset) -> str | None:
    """What its signals are computed with; None where neither a head nor a soup is used."""
    return job.proxy or (str(SOUP) if job.labels is None else None)


def _costs(selected: Selected) -> dict[str, float]:
    """Seconds of choosing, without those of a warm-up, which is shared by all who choose by it."""
    costs = {"selection_seconds": selected.seconds - selected.warming_seconds}
    if selected.warm_up_seconds is not None:
        costs["warm_up_seconds"] = selected.warm_up_seconds
    return costs
