"""Identity: which stored subset is the very one that is asked for, or its predecessor."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from lipt.coordinator.compute.jobs.selecting import SelectSubset
from lipt.coordinator.state.records import RunRecord, SubsetRecord
from lipt.core.proxies.proxy import SOUP
from lipt.core.selection.registry import find_strategy
from lipt.core.selection.without_labels import Labels


def subset_key(run: RunRecord, job: SelectSubset) -> str:
    """What a subset is stored under: a hash of the run and of what is asked of it.

    Of everything that the result depends on, and nothing else.
    """
    # What a job does without is left out, so that an older version's subsets keep their keys.
    given = {name: value for name, value in asdict(job).items() if value is not None}
    # By its name of when all data was images, for the same reason.
    given["image"] = given.pop("inputs")
    # So is the number of snapshots: what it led to stands in the job's trajectories. How many
    # workers had to agree on a learner changes nothing in it. What is frozen, whether the head
    # is new, and how alphas were looked for, is the run's own for good.
    without = {
        "initialization": {"new_head"},
        "learners": {"num_snapshots", "redundancy", "frozen"},
        "soup": {"search"},
    }
    config = run.config.model_dump(mode="json", exclude=without)
    asked = given | {"config": config, "run": run.run_id}
    if revision := find_strategy(job.strategy).revision:
        asked["revision"] = revision
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


def asked_the_same(subset: SubsetRecord, job: SelectSubset) -> bool:
    """Whether a stored subset was selected as the job would, whatever the weights."""
    manifest = subset.manifest
    return (
        subset.strategy == job.strategy
        and subset.balanced == job.balanced
        and manifest.get("options") == dict(job.options)
        and manifest.get("budget") == job.budget
        and manifest.get("labels", str(Labels.GIVEN)) == str(job.labels or Labels.GIVEN)
        and _proxy_of(manifest) == (job.judged_by, job.backbone)
        and manifest.get("features_sha256") == (job.features and job.features.sha256)
    )


def _proxy_of(manifest: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """A stored subset's, and the backbone that it may have looked at.

    An older version's subsets have no other than the soup, or do not say which backbone.
    """
    proxy = manifest.get("proxy", {})
    return proxy.get("proxy", str(SOUP)), proxy.get("backbone")
