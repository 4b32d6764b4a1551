"""LiPT for a training script: ask a coordinator for runs, weights and subsets.

    from lipt.trainer import Client

    with Client("127.0.0.1:50051") as client:
        subset = client.subset(fraction=0.1)

Names are looked up when they are first used, so that importing this package
costs neither torch nor gRPC.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lipt.common.states import RunState
    from lipt.trainer.client.client import Client
    from lipt.trainer.diagnosis.diagnosis import Diagnosis
    from lipt.trainer.main_training import Recipe, Schedule, Trained, TrainingPaused, fit
    from lipt.trainer.resampling.samplers import (
        InfoBatchSampler,
        RedrawingSampler,
        StaleLossSampler,
        with_ids,
    )
    from lipt.trainer.resampling.sources import RedrawnInfoBatch, RedrawnRandom, RedrawnStale
    from lipt.trainer.reselection.reselection import Reselection
    from lipt.trainer.reselection.samplers import ReselectingSampler, SubsetSampler
    from lipt.trainer.subsets.subset import Subset
    from lipt.trainer.subsets.weighted import normalized_weights, weighted_cross_entropy
    from lipt.trainer.views import InfoView, LearnerView, RunView, StrategyView

__all__ = [
    "Client",
    "Diagnosis",
    "InfoBatchSampler",
    "InfoView",
    "LearnerView",
    "Recipe",
    "RedrawingSampler",
    "RedrawnInfoBatch",
    "RedrawnRandom",
    "RedrawnStale",
    "ReselectingSampler",
    "Reselection",
    "RunState",
    "RunView",
    "Schedule",
    "StaleLossSampler",
    "StrategyView",
    "Subset",
    "SubsetSampler",
    "Trained",
    "TrainingPaused",
    "fit",
    "normalized_weights",
    "weighted_cross_entropy",
    "with_ids",
]

_MODULES = {
    "lipt.common.states": ("RunState",),
    "lipt.trainer.client.client": ("Client",),
    "lipt.trainer.diagnosis.diagnosis": ("Diagnosis",),
    "lipt.trainer.main_training": ("Recipe", "Schedule", "Trained", "TrainingPaused", "fit"),
    "lipt.trainer.resampling.sources": ("RedrawnInfoBatch", "RedrawnRandom", "RedrawnStale"),
    "lipt.trainer.resampling.samplers": (
        "InfoBatchSampler",
        "RedrawingSampler",
        "StaleLossSampler",
        "with_ids",
    ),
    "lipt.trainer.reselection.reselection": ("Reselection",),
    "lipt.trainer.reselection.samplers": ("ReselectingSampler", "SubsetSampler"),
    "lipt.trainer.subsets.subset": ("Subset",),
    "lipt.trainer.subsets.weighted": ("normalized_weights", "weighted_cross_entropy"),
    "lipt.trainer.views": ("InfoView", "LearnerView", "RunView", "StrategyView"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
