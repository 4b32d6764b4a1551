"""Resolved requests of tests, with the values that their strategy has by default."""

from typing import Any

from lipt.common.blobs.blob import BlobName
from lipt.common.config.run_config import RunConfig
from lipt.common.requests import SOUP
from lipt.coordinator.compute.jobs.selection import SelectSubset
from lipt.core.selection.select import find_strategy
from lipt.core.stages.resolve import NeededTraining, ResolvedRequest, Sources
from lipt.data.inputs.specs import InputFormat


def resolved(strategy: str, budget: int = 40, **others: Any) -> ResolvedRequest:
    known, given = find_strategy(strategy), dict(others.pop("given", {}))
    options = known.parse_options(given)
    defaults: dict[str, Any] = {
        "preset": "",
        "options": options,
        "given": given,
        "needs": known.needs_for(options),
        "balanced": False,
        "unlabelled": False,
        "training": NeededTraining.LEARNERS,
        "proxy": SOUP,
        "teacher": None,
        "warm_up": None,
        "weights": None,
        "features": None,
        "probabilities": None,
        "mixture": None,
    }
    return ResolvedRequest(strategy=strategy, budget=budget, **{**defaults, **others})


def selection_job(
    strategy: str,
    budget: int = 40,
    *,
    config: RunConfig,
    inputs: InputFormat,
    weights: BlobName,
    **others: Any,
) -> SelectSubset:
    """A job with these sources, and with `others` of its request."""
    request = resolved(strategy, budget, **others)
    sources = Sources(config, inputs, weights, request.features)
    return SelectSubset(request, sources)
