from typing import Any

import pytest

from lipt.trainer.comparison.compare import selection_costs, uses_pretraining
from lipt.trainer.views import CostsView, StrategyView

SIGNALS = ("signals",)


def ridge(features: str, *tried: str) -> dict[str, Any]:
    """What a manifest says of a ridge head, and of what was tried before it."""
    proxy = "auto" if tried else f"ridge:{features}"
    return {"proxy": proxy, "features": features, "tried": [{"features": one} for one in tried]}


@pytest.mark.parametrize(
    ("needs", "proxy", "rests"),
    [
        (SIGNALS, ridge("patches"), False),
        (SIGNALS, ridge("backbone+user"), False),
        (SIGNALS, {"proxy": "soup"}, True),
        (SIGNALS, ridge("soup"), True),
        (SIGNALS, ridge("patches+learners"), True),
        # What was tried had to be there, though another won.
        (SIGNALS, ridge("patches", "patches", "learners", "learners+patches"), True),
        (SIGNALS, ridge("patches", "patches", "backbone"), False),
        # Where no proxy was looked at, the manifest names the soup.
        (("labels",), {"proxy": "soup"}, False),
        (("near-duplicates",), {"proxy": "soup"}, False),
        (("near-duplicates", "signals"), {"proxy": "soup"}, True),
        # These are of the run, whatever the proxy.
        (("learners", "signals"), ridge("patches"), True),
        (("gradient norms", "signals"), ridge("patches"), True),
    ],
)
def test_costs_include_pre_training_if_the_run_was_used(
    needs: tuple[str, ...], proxy: dict[str, Any], rests: bool
) -> None:
    assert uses_pretraining(needs, {"proxy": proxy}) is rests


def test_costs_of_soft_labels_include_their_head_s_pre_training() -> None:
    assert not uses_pretraining((), {"soft_labels": ridge("patches")})
    assert uses_pretraining((), {"soft_labels": ridge("patches", "patches", "learners")})


@pytest.mark.parametrize(
    ("name", "manifest", "costs"),
    [
        ("uniform", {}, {}),
        ("uniform", {"soft_labels": ridge("patches")}, {"selection_seconds": 1.5}),
        ("craig", {"proxy": ridge("patches")}, {"selection_seconds": 1.5}),
        (
            "craig",
            {"proxy": {"proxy": "soup"}},
            {"selection_seconds": 1.5, "pretraining_seconds": 10.0, "bytes_sent": 30},
        ),
        # An ordinary warm-up takes the place of the run, at its own cost.
        (
            "craig",
            {"proxy": {"proxy": "soup"}, "warm_up_seconds": 2.5},
            {"selection_seconds": 1.5, "pretraining_seconds": 2.5},
        ),
    ],
)
def test_costs_of_selection(name: str, manifest: dict[str, Any], costs: dict[str, float]) -> None:
    warm_up = {key: value for key, value in manifest.items() if key == "warm_up_seconds"}
    needs = () if name == "uniform" else SIGNALS
    strategy = StrategyView(name, "", "", True, True, (), needs=needs)
    run = CostsView(1.0, 2.0, 3.0, 4.0, 10, 20)
    told = {**manifest, "costs": {"selection_seconds": 1.5, **warm_up}}
    assert selection_costs(strategy, run, told) == costs
