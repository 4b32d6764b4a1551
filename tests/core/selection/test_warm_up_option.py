from __future__ import annotations

import pytest

from lipt.core.selection.registry import STRATEGIES, find_strategy
from lipt.core.selection.warm_up_option import WarmUp


@pytest.mark.parametrize(
    ("text", "warm_up", "one_text"),
    [
        ("epochs:15", WarmUp(15.0), "epochs:15"),
        ("epochs:15.0x1", WarmUp(15.0), "epochs:15"),
        ("epochs:0.5", WarmUp(0.5), "epochs:0.5"),
        ("epochs:0", WarmUp(0.0), "epochs:0"),
        ("epochs:1x10", WarmUp(1.0, 10), "epochs:1x10"),
    ],
)
def test_equal_warm_ups_are_one_text(text: str, warm_up: WarmUp, one_text: str) -> None:
    assert WarmUp.parse(text) == warm_up
    assert str(warm_up) == one_text


def test_lipt_is_no_ordinary_warm_up() -> None:
    assert WarmUp.parse("lipt") is None
    assert WarmUp.among({}) is None


@pytest.mark.parametrize(
    "text", ["", "15", "epochs", "epochs:", "epochs:-1", "epochs:1x0", "epochs:nan", "epochs:1e3"]
)
def test_anything_else_is_no_warm_up(text: str) -> None:
    with pytest.raises(ValueError, match="is no pre-training"):
        WarmUp.parse(text)


def test_a_model_that_is_not_trained_still_counts() -> None:
    assert WarmUp(0.0, 3).counted_epochs == 3.0
    assert WarmUp(0.5, 2).counted_epochs == 2.0
    assert WarmUp(15.0, 10).counted_epochs == 150.0


def test_strategies_that_look_at_a_model_have_the_option_last() -> None:
    having = {
        name
        for name, strategy in STRATEGIES.items()
        if "pretraining" in [option.name for option in strategy.options[-1:]]
    }
    assert having.isdisjoint({"auto", "uniform", "uniform_per_class", "clipcov"})
    assert having.isdisjoint({"forgetting", "aum", "dual", "disagreement"})
    assert having >= {"grand", "el2n", "craig", "glister", "kcenter", "facility_location", "ccs"}
    assert find_strategy("craig").parse_options({})["pretraining"] == "lipt"


def test_means_over_models_are_those_of_papers() -> None:
    assert {name for name, known in STRATEGIES.items() if known.averages} == {"grand", "el2n"}
