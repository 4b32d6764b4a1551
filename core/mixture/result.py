"""Result: how much of each source to train on for a target, and the file that keeps it.

The file is JSON. `SourceShares` of the selection reads its shares and rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal, Self

from pydantic import TypeAdapter, model_validator
from pydantic.dataclasses import dataclass


@dataclass(frozen=True)
class MixtureOutcome:
    """One mixture: shares by source, and merged learners' loss and accuracy on held-out target.

    real_accuracies: of short trainings on it, one per seed; empty unless checked.
    """

    weights: Mapping[str, float]
    loss: float
    accuracy: float
    real_accuracies: tuple[float, ...] = ()


@dataclass(frozen=True)
class MixtureSummary:
    """A mixture's shares and findings, without its rows.

    Attributes:
        weights: each source's share; their sum is 1.
        intervals: each share's 95% interval over resampled target examples.
        outcomes: the mixture ("merged"), equal shares ("uniform"), sizes ("size") and baselines.
        verdict: whether the mixture is measurably better than equal shares.
        findings: sentences on the sources and the target.
        manifest: settings, seed, versions, readiness of theta*, seconds.
    """

    weights: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    outcomes: Mapping[str, MixtureOutcome]
    verdict: str
    findings: tuple[str, ...]
    manifest: Mapping[str, Any]


@dataclass(frozen=True)
class MixtureResult(MixtureSummary):
    """How much of each source to train on for a target.

    Attributes, besides those of `MixtureSummary`:
        fingerprint: of the data that `rows` are of.
        rows: each source's rows there, as ranges [start, stop).
    """

    fingerprint: str
    rows: Mapping[str, tuple[tuple[int, int], ...]] = field(repr=False)
    format: Literal["lipt-mixture-1"] = field(default="lipt-mixture-1", repr=False, kw_only=True)

    @model_validator(mode="after")
    def _names_each_source(self) -> Self:
        if self.intervals.keys() != self.weights.keys():
            raise ValueError("its intervals are of other sources than its shares")
        return self

    def to_json(self) -> bytes:
        """Return the content of a file."""
        return TypeAdapter(MixtureResult).dump_json(self)
