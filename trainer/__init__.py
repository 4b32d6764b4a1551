"""LiPT for a training script: runs, weights and subsets from a coordinator.

    with lipt.trainer.Client("127.0.0.1:50051") as client:
        subset = client.subset(fraction=0.1)

Names are imported on first use: importing this package loads neither torch nor gRPC.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lipt.common.states import RunState as RunState
    from lipt.trainer.client.client import Client as Client
    from lipt.trainer.diagnosis.diagnosis import Diagnosis as Diagnosis
    from lipt.trainer.main_training import Recipe as Recipe
    from lipt.trainer.main_training import Schedule as Schedule
    from lipt.trainer.main_training import Trained as Trained
    from lipt.trainer.main_training import TrainingPaused as TrainingPaused
    from lipt.trainer.main_training import fit as fit
    from lipt.trainer.resampling.repeated_random import RepeatedRandom as RepeatedRandom
    from lipt.trainer.resampling.reselection import ReselectingSampler as ReselectingSampler
    from lipt.trainer.resampling.reselection import Reselection as Reselection
    from lipt.trainer.resampling.samplers import RepeatedRandomSampler as RepeatedRandomSampler
    from lipt.trainer.resampling.samplers import SubsetSampler as SubsetSampler
    from lipt.trainer.subsets.subset import Subset as Subset
    from lipt.trainer.subsets.weighted import normalized_weights as normalized_weights
    from lipt.trainer.subsets.weighted import weighted_cross_entropy as weighted_cross_entropy
    from lipt.trainer.views import InfoView as InfoView
    from lipt.trainer.views import LearnerView as LearnerView
    from lipt.trainer.views import RunView as RunView
    from lipt.trainer.views import StrategyView as StrategyView

_MODULES = {
    "lipt.common.states": "RunState",
    "lipt.trainer.client.client": "Client",
    "lipt.trainer.diagnosis.diagnosis": "Diagnosis",
    "lipt.trainer.main_training": "Recipe Schedule Trained TrainingPaused fit",
    "lipt.trainer.resampling.samplers": ("RepeatedRandomSampler SubsetSampler"),
    "lipt.trainer.resampling.repeated_random": "RepeatedRandom",
    "lipt.trainer.resampling.reselection": "Reselection ReselectingSampler",
    "lipt.trainer.subsets.subset": "Subset",
    "lipt.trainer.subsets.weighted": "normalized_weights weighted_cross_entropy",
    "lipt.trainer.views": "InfoView LearnerView RunView StrategyView",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}
__all__ = list(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        return getattr(importlib.import_module(_MODULE_OF[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
