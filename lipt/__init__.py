"""LiPT in one call: select the examples worth training on, in this process or on a cluster.

    subset = lipt.select((images, labels), fraction=0.1)
    loader = DataLoader(subset.dataset((images, labels)), batch_size=64)

Names are imported on first use: `import lipt` loads neither torch nor gRPC.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lipt.calls import Comparison as Comparison
    from lipt.calls import clean as clean
    from lipt.calls import compare as compare
    from lipt.calls import diagnose as diagnose
    from lipt.calls import select as select
    from lipt.common.config.run_config import PRESETS as PRESETS
    from lipt.common.states import RunState as RunState
    from lipt.core.catalogue import StrategyView as StrategyView
    from lipt.core.selection.select import strategy as strategy
    from lipt.core.selection.selection import Selection as Selection
    from lipt.core.selection.strategy import Strategy as Strategy
    from lipt.core.signals.dynamics import Dynamics as Dynamics
    from lipt.core.signals.views import ExampleLabels as ExampleLabels
    from lipt.core.signals.views import Features as Features
    from lipt.core.signals.views import GradientNorms as GradientNorms
    from lipt.core.signals.views import InitialLosses as InitialLosses
    from lipt.core.signals.views import LastLayer as LastLayer
    from lipt.core.signals.views import NearDuplicates as NearDuplicates
    from lipt.core.signals.views import PairedFeatures as PairedFeatures
    from lipt.core.signals.views import TargetFeatures as TargetFeatures
    from lipt.core.signals.views import TargetLosses as TargetLosses
    from lipt.core.signals.views import TargetWords as TargetWords
    from lipt.core.signals.views import UnpromptedLosses as UnpromptedLosses
    from lipt.core.signals.views import ValidationSignals as ValidationSignals
    from lipt.data.sources.pairs import open_pairs as open_pairs
    from lipt.mixture import mix as mix
    from lipt.pretraining import Pretrained as Pretrained
    from lipt.pretraining import open_dataset as open_dataset
    from lipt.pretraining import pretrain as pretrain
    from lipt.trainer.client.client import Client as Client
    from lipt.trainer.diagnosis.diagnosis import Diagnosis as Diagnosis
    from lipt.trainer.diagnosis.marks import Cleaned as Cleaned
    from lipt.trainer.main_training import Recipe as Recipe
    from lipt.trainer.main_training import Schedule as Schedule
    from lipt.trainer.main_training import Trained as Trained
    from lipt.trainer.main_training import TrainingPaused as TrainingPaused
    from lipt.trainer.main_training import fit as fit
    from lipt.trainer.mixture import Mixture as Mixture
    from lipt.trainer.resampling.reselection import ReselectingSampler as ReselectingSampler
    from lipt.trainer.resampling.reselection import Reselection as Reselection
    from lipt.trainer.resampling.samplers import RepeatedRandom as RepeatedRandom
    from lipt.trainer.resampling.samplers import RepeatedRandomSampler as RepeatedRandomSampler
    from lipt.trainer.resampling.samplers import SubsetSampler as SubsetSampler
    from lipt.trainer.subsets.data import SoftTargetLoss as SoftTargetLoss
    from lipt.trainer.subsets.data import UnweightedWarning as UnweightedWarning
    from lipt.trainer.subsets.data import WeightedCollate as WeightedCollate
    from lipt.trainer.subsets.data import WeightedSubsetLoss as WeightedSubsetLoss
    from lipt.trainer.subsets.data import normalized_weights as normalized_weights
    from lipt.trainer.subsets.subset import Subset as Subset
    from lipt.trainer.views import InfoView as InfoView
    from lipt.trainer.views import LearnerView as LearnerView
    from lipt.trainer.views import RunView as RunView

    __version__: str

_MODULES = {
    "lipt.calls": "Comparison clean compare diagnose select",
    "lipt.common.config.run_config": "PRESETS",
    "lipt.data.sources.pairs": "open_pairs",
    "lipt.common.states": "RunState",
    "lipt.core.catalogue": "StrategyView",
    "lipt.core.selection.select": "strategy",
    "lipt.core.selection.selection": "Selection",
    "lipt.core.selection.strategy": "Strategy",
    "lipt.core.signals.dynamics": "Dynamics",
    "lipt.core.signals.views": (
        "NearDuplicates ExampleLabels Features GradientNorms InitialLosses LastLayer "
        "PairedFeatures TargetFeatures TargetLosses TargetWords UnpromptedLosses "
        "ValidationSignals"
    ),
    "lipt.mixture": "Mixture mix",
    "lipt.pretraining": "Pretrained open_dataset pretrain",
    "lipt.trainer.client.client": "Client",
    "lipt.trainer.diagnosis.diagnosis": "Diagnosis",
    "lipt.trainer.diagnosis.marks": "Cleaned",
    "lipt.trainer.main_training": "Recipe Schedule Trained TrainingPaused fit",
    "lipt.trainer.resampling.reselection": "ReselectingSampler Reselection",
    "lipt.trainer.resampling.samplers": "RepeatedRandom RepeatedRandomSampler SubsetSampler",
    "lipt.trainer.subsets.subset": "Subset",
    "lipt.trainer.subsets.data": (
        "SoftTargetLoss UnweightedWarning WeightedCollate WeightedSubsetLoss normalized_weights"
    ),
    "lipt.trainer.views": "InfoView LearnerView RunView",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}
__all__ = list(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415 - takes 30 ms

        return version("lipt")
    if name in _MODULE_OF:
        return getattr(importlib.import_module(_MODULE_OF[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
