"""Pre-training's part in a choice: whether a run's learners or its soup were looked at for it.

Patches of the images, the operator's backbone and features of the user's own are had without a
run, and so is a random subset: what was pre-trained beside them is no cost of choosing. An
ordinary warm-up stands in for it, at a cost of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

# What strategies need, as `StrategyView.needs` has it, that the data alone have.
_OF_THE_DATA = {"labels", "near copies", "paired features"}
# What is of the run in any case; the rest is of the proxy.
_OF_THE_RUN = {"gradient norms", "learners"}
# Features that a proxy has of the run; theta*, the proxies' `initial`, is there without a learner.
_PRETRAINED = {"soup", "learners"}


def warm_up_seconds(manifest: Mapping[str, Any]) -> float | None:
    """What the ordinary warm-up took that a subset was chosen by; None where there was none."""
    seconds = manifest.get("costs", {}).get("warm_up_seconds")
    return None if seconds is None else float(seconds)


def rests_on_pretraining(needs: Collection[str], manifest: Mapping[str, Any]) -> bool:
    """Whether a subset could not have been chosen without the run's pre-training.

    Args:
        needs: what its strategy needs; empty of an older coordinator.
        manifest: the subset's. What a choice of proxies has tried counts as well, whichever
            won: it had to be there.
    """
    if warm_up_seconds(manifest) is not None:
        return False
    if needs and _OF_THE_DATA.issuperset(needs):
        return False
    proxy = manifest.get("proxy", {})
    if "features" not in proxy or not _OF_THE_RUN.isdisjoint(needs):
        return True
    looked_at = [proxy["features"], *(tried["features"] for tried in proxy["tried"])]
    return any(not _PRETRAINED.isdisjoint(features.split("+")) for features in looked_at)
