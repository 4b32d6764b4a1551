"""LiPT in one call: choose the examples worth training on, in this process or on a cluster.

    import lipt

    subset = lipt.select((images, labels), fraction=0.1)
    for images, labels, weights in DataLoader(subset.dataset((images, labels)), batch_size=64): ...

Names are looked up when they are first used, so that `import lipt` costs neither torch nor gRPC,
nor do the processes of the service, which import this package before their own.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lipt.calls import Comparison, compare, diagnose, select
    from lipt.common.data.sources.pairs import open_pairs
    from lipt.data import open_dataset
    from lipt.pretraining import Pretrained, pretrain
    from lipt.trainer.client.client import Client
    from lipt.trainer.diagnosis.diagnosis import Diagnosis
    from lipt.trainer.main_training import Recipe, fit
    from lipt.trainer.resampling.samplers import (
        InfoBatchSampler,
        RedrawingSampler,
        StaleLossSampler,
        with_ids,
    )
    from lipt.trainer.reselection.samplers import ReselectingSampler, SubsetSampler
    from lipt.trainer.subsets.subset import Subset
    from lipt.trainer.subsets.weighted import (
        SoftTargetLoss,
        UnweightedWarning,
        WeightedCollate,
        WeightedSubsetLoss,
        normalized_weights,
        weighted_cross_entropy,
    )

    __version__: str

__all__ = [
    "Client",
    "Comparison",
    "Diagnosis",
    "InfoBatchSampler",
    "Pretrained",
    "Recipe",
    "RedrawingSampler",
    "ReselectingSampler",
    "SoftTargetLoss",
    "StaleLossSampler",
    "Subset",
    "SubsetSampler",
    "UnweightedWarning",
    "WeightedCollate",
    "WeightedSubsetLoss",
    "__version__",
    "compare",
    "diagnose",
    "fit",
    "normalized_weights",
    "open_dataset",
    "open_pairs",
    "pretrain",
    "select",
    "weighted_cross_entropy",
    "with_ids",
]

_MODULES = {
    "lipt.calls": ("Comparison", "compare", "diagnose", "select"),
    "lipt.data": ("open_dataset", "open_pairs"),
    "lipt.pretraining": ("Pretrained", "pretrain"),
    "lipt.trainer.client.client": ("Client",),
    "lipt.trainer.diagnosis.diagnosis": ("Diagnosis",),
    "lipt.trainer.main_training": ("Recipe", "fit"),
    "lipt.trainer.resampling.samplers": (
        "InfoBatchSampler",
        "RedrawingSampler",
        "StaleLossSampler",
        "with_ids",
    ),
    "lipt.trainer.reselection.samplers": ("ReselectingSampler", "SubsetSampler"),
    "lipt.trainer.subsets.subset": ("Subset",),
    "lipt.trainer.subsets.weighted": (
        "SoftTargetLoss",
        "UnweightedWarning",
        "WeightedCollate",
        "WeightedSubsetLoss",
        "normalized_weights",
        "weighted_cross_entropy",
    ),
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415 - takes 30 ms

        return version("lipt")
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
