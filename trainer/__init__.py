"""The trainer's side: ask a coordinator for runs, weights and subsets.

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
    from lipt.trainer.client import Client
    from lipt.trainer.main_training import Recipe, Schedule, Trained, fit
    from lipt.trainer.reselection import Reselection
    from lipt.trainer.samplers import ReselectingSampler, SubsetSampler
    from lipt.trainer.subset import Subset
    from lipt.trainer.views import InfoView, LearnerView, RunState, RunView, StrategyView
    from lipt.trainer.weighted_loss import normalized_weights, weighted_cross_entropy

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
    "Client": "lipt.trainer.client",
    "Recipe": "lipt.trainer.main_training",
    "ReselectingSampler": "lipt.trainer.samplers",
    "Reselection": "lipt.trainer.reselection",
    "Schedule": "lipt.trainer.main_training",
    "Subset": "lipt.trainer.subset",
    "SubsetSampler": "lipt.trainer.samplers",
    "Trained": "lipt.trainer.main_training",
    "fit": "lipt.trainer.main_training",
    "normalized_weights": "lipt.trainer.weighted_loss",
    "weighted_cross_entropy": "lipt.trainer.weighted_loss",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES.get(name, "lipt.trainer.views")), name)
