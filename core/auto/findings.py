"""Findings of `auto`: its evidence and plan as values, for a record and for sentences.

Shapes: C classes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from lipt.core.auto.evidence import Evidence
from lipt.core.auto.plan import Method, Plan
from lipt.core.diagnosis.noise import NoiseRate
from lipt.data.dataset import IdMapping
from lipt.data.targets.kinds import TargetKind

# Keeps a manifest readable on one page; a diagnosis has all ids.
_MAX_NAMED = 1000


@dataclass(frozen=True)
class PlanFindings:
    """A plan for classes, and the excluded examples, lowest quality first."""

    evidence: Evidence
    plan: Plan
    noise: NoiseRate
    excluded: Tensor

    def by_id(self, id_mapping: IdMapping) -> PlanFindings:
        return replace(self, excluded=id_mapping.ids(self.excluded.cpu()))

    def to_json(self) -> dict[str, Any]:
        noise = self.noise
        return {
            "method": self.plan.method.value,
            "reason": self.plan.reason.value,
            "noise": {"low": noise.low, "rate": noise.known_rate, "high": noise.high},
            "accuracy": self.evidence.accuracy,
            "copies": self.evidence.copies,
            "excluded": {
                "count": len(self.excluded),
                "share_per_class": [round(share, 4) for share in self.plan.excluded_C],
                "lowest_quality_ids": self.excluded[:_MAX_NAMED].tolist(),
            },
        }


@dataclass(frozen=True)
class StrataFindings:
    """A draw from strata of labels or numbers; `num_excluded` are near-duplicates."""

    kind: TargetKind
    balanced: bool
    copies: float
    num_excluded: int

    def by_id(self, _: IdMapping) -> StrataFindings:
        return self

    def to_json(self) -> dict[str, Any]:
        excluded = {"count": self.num_excluded}
        return {"method": Method.RANDOM.value, "copies": self.copies, "excluded": excluded}
