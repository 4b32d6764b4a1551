from __future__ import annotations

from typing import Any

import pytest

from lipt.trainer.comparison.compare import rests_on_pretraining, warm_up_seconds

SIGNALS = ("signals",)
SOUP = {"proxy": "soup"}


def ridge(features: str, *tried: str) -> dict[str, Any]:
    """What a manifest says of a ridge head, and of what was tried before it."""
    proxy = "auto" if tried else f"ridge:{features}"
    return {"proxy": proxy, "features": features, "tried": [{"features": one} for one in tried]}


@pytest.mark.parametrize("features", ["patches", "backbone", "user", "backbone+patches"])
def test_features_that_need_no_run_rest_on_none(features: str) -> None:
    assert not rests_on_pretraining(SIGNALS, {"proxy": ridge(features)})


@pytest.mark.parametrize("proxy", [SOUP, ridge("soup"), ridge("patches+learners")])
def test_the_soup_and_the_learners_had_to_be_trained(proxy: dict[str, Any]) -> None:
    assert rests_on_pretraining(SIGNALS, {"proxy": proxy})


def test_what_was_tried_had_to_be_there_though_another_won() -> None:
    with_learners = ridge("patches", "patches", "learners", "learners+patches")
    assert rests_on_pretraining(SIGNALS, {"proxy": with_learners})
    without = ridge("patches", "patches", "backbone", "backbone+patches")
    assert not rests_on_pretraining(SIGNALS, {"proxy": without})


@pytest.mark.parametrize("needs", [("labels",), ("paired features",), ("near copies",)])
def test_strategies_that_look_at_the_data_alone_rest_on_no_run(needs: tuple[str, ...]) -> None:
    # Where no proxy was looked at, the manifest names the soup.
    assert not rests_on_pretraining(needs, {"proxy": SOUP})


def test_near_copies_beside_signals_do_not_make_a_run_needless() -> None:
    assert rests_on_pretraining(("near copies", "signals"), {"proxy": SOUP})
    assert not rests_on_pretraining(("near copies", "signals"), {"proxy": ridge("patches")})


@pytest.mark.parametrize("need", ["learners", "gradient norms"])
def test_what_is_of_the_run_is_so_whatever_the_proxy(need: str) -> None:
    assert rests_on_pretraining((need, "signals"), {"proxy": ridge("patches")})


def test_an_ordinary_warm_up_stands_in_for_the_run_at_its_own_cost() -> None:
    manifest = {"proxy": SOUP, "costs": {"warm_up_seconds": 2.5, "training_seconds": 9.0}}
    assert not rests_on_pretraining(SIGNALS, manifest)
    assert warm_up_seconds(manifest) == 2.5
    assert warm_up_seconds({"proxy": SOUP, "costs": {"training_seconds": 9.0}}) is None
