"""Manifest: how a subset came about, as it is stored and told with it."""

from __future__ import annotations

from lipt.common.process.devices import versions
from lipt.coordinator.compute.jobs.pretraining import DataDescription
from lipt.coordinator.compute.jobs.selecting import Selected, SelectSubset
from lipt.coordinator.state.records import RunRecord
from lipt.core.selection.without_labels import Labels


def manifest_of(
    run: RunRecord, job: SelectSubset, selected: Selected, data: DataDescription
) -> dict[str, object]:
    """What is told and kept of a subset besides its examples.

    Args:
        run: that it was selected for.
        job: which selected it.
        selected: what came of it.
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
        "strategy": job.strategy,
        "preset": job.preset,
        "options": dict(job.options),
        "labels": str(job.labels or Labels.GIVEN),
        "proxy": {
            "proxy": job.judged_by,
            **({"backbone": job.backbone} if job.backbone else {}),
            **(selected.proxy or {}),
        },
        "budget": job.budget,
        "balanced": job.balanced,
        "stopped_early": selected.stopped_early,
        "findings": dict(selected.findings),
        "weights_sha256": job.weights.sha256,
        "features_sha256": job.features and job.features.sha256,
        "device": selected.device,
        "versions": versions(),
        "costs": run.all_costs | _costs(selected),
    }


def _costs(selected: Selected) -> dict[str, float]:
    """Seconds of choosing, and those of a warm-up, which are told by themselves.

    What a warm-up took when it was trained is the same for all who choose by it.
    """
    costs = {"selection_seconds": selected.seconds - selected.warming_seconds}
    if selected.warm_up_seconds is not None:
        costs["warm_up_seconds"] = selected.warm_up_seconds
    return costs
