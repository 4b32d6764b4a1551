"""The trainer's side: ask a coordinator for runs, weights and subsets.

    from lipt.trainer import Client

    with Client("127.0.0.1:50051") as client:
        subset = client.subset(strategy="grand", fraction=0.1)

Names are looked up when they are first used, so that importing this package
costs neither torch nor gRPC.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lipt.trainer.client import Client
    from lipt.trainer.subset import Subset
    from lipt.trainer.views import InfoView, LearnerView, RunState, RunView, StrategyView

__all__ = [
    "Client",
    "InfoView",
    "LearnerView",
    "RunState",
    "RunView",
    "StrategyView",
    "Subset",
]

_MODULES = {"Client": "lipt.trainer.client", "Subset": "lipt.trainer.subset"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES.get(name, "lipt.trainer.views")), name)
