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
    from lipt.trainer.main_training import Recipe, Schedule, Trained, fit
    from lipt.trainer.reselection.reselection import Reselection
    from lipt.trainer.reselection.samplers import ReselectingSampler, SubsetSampler
    from lipt.trainer.subsets.subset import Subset
    from lipt.trainer.subsets.weighted_loss import normalized_weights, weighted_cross_entropy
    from lipt.trainer.views import InfoView, LearnerView, RunView, StrategyView

__all__ = [
    "Client",
    "InfoView",
    "LearnerView",
    "Recipe",
    "ReselectingSampler",
    "Reselection",
    "RunState",
    "RunView",
    "Schedule",
    "StrategyView",
    "Subset",
    "SubsetSampler",
    "Trained",
    "fit",
    "normalized_weights",
    "weighted_cross_entropy",
]

_MODULES = {
    "Client": "lipt.trainer.client.client",
    "Recipe": "lipt.trainer.main_training",
    "ReselectingSampler": "lipt.trainer.reselection.samplers",
    "Reselection": "lipt.trainer.reselection.reselection",
    "RunState": "lipt.common.states",
    "Schedule": "lipt.trainer.main_training",
    "Subset": "lipt.trainer.subsets.subset",
    "SubsetSampler": "lipt.trainer.reselection.samplers",
    "Trained": "lipt.trainer.main_training",
    "fit": "lipt.trainer.main_training",
    "normalized_weights": "lipt.trainer.subsets.weighted_loss",
    "weighted_cross_entropy": "lipt.trainer.subsets.weighted_loss",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES.get(name, "lipt.trainer.views")), name)
