from typing import Annotated, Literal

import pytest
from pydantic import Field

from lipt.common.errors import StrategyOptionError, UnknownNameError
from lipt.core.selection.options import Preset, WarmUp, options_of, parse_options
from lipt.core.selection.registry import STRATEGIES, find_strategy
from lipt.core.selection.strategy import Strategy


def example(
    signals: object,
    budget: int,
    *,
    balanced: bool,
    seed: int,
    solver: Literal["lazy", "stochastic"] = "lazy",
    penalty: Annotated[float, Field(gt=0, le=1), "what large weights cost"] = 0.5,
    rounds: int = 15,
    exact: bool = False,
    limit: int | Literal["all"] = "all",
) -> None:
    """Has an option of every kind."""


OPTIONS = options_of(example)


def test_options_are_the_keyword_only_parameters_without_what_the_service_gives() -> None:
    assert {option.name: (option.default, option.allowed) for option in OPTIONS} == {
        "solver": ("lazy", ("lazy", "stochastic")),
        "penalty": ("0.5", ("number > 0 and <= 1",)),
        "rounds": ("15", ("integer",)),
        "exact": ("false", ("true", "false")),
        "limit": ("all", ("integer", "all")),
    }
    assert [option.help for option in OPTIONS] == ["", "what large weights cost", "", "", ""]


def test_texts_become_values_and_the_rest_is_default() -> None:
    given = {"solver": "stochastic", "penalty": "0.25", "exact": "true", "limit": "3"}
    assert parse_options("example", OPTIONS, given) == {
        "solver": "stochastic",
        "penalty": 0.25,
        "rounds": 15,
        "exact": True,
        "limit": 3,
    }
    assert parse_options("example", OPTIONS, {})["limit"] == "all"


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [
        ("solver", "greedy", "lazy, stochastic (default lazy)"),
        ("penalty", "0", "number > 0 and <= 1 (default 0.5)"),
        ("penalty", "nan", "number > 0 and <= 1 (default 0.5)"),
        ("rounds", "2.5", "integer (default 15)"),
        ("exact", "perhaps", "true, false (default false)"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_with_those_that_are(
    name: str, text: str, allowed: str
) -> None:
    with pytest.raises(StrategyOptionError) as refusal:
        parse_options("example", OPTIONS, {name: text})
    assert refusal.value.message == (
        f"option {name} of strategy 'example' cannot be {text!r}. Choose one of: {allowed}."
    )


def test_an_unknown_option_is_refused_with_all_that_there_are() -> None:
    with pytest.raises(StrategyOptionError, match=r"no option 'sede'\..*solver \(lazy \| stochas"):
        parse_options("example", OPTIONS, {"sede": "1"})
    with pytest.raises(StrategyOptionError, match=r"no option 'seed'\."):
        parse_options("example", OPTIONS, {"seed": "1"})
    with pytest.raises(StrategyOptionError, match=r"no option 'x'\. It takes none\."):
        parse_options("el2n", (), {"x": "1"})


PRESETS = [
    pytest.param(strategy, preset, id=f"{name} {preset}")
    for name, strategy in STRATEGIES.items()
    for preset in strategy.presets
]


def test_what_is_given_wins_over_a_preset() -> None:
    preset = Preset("both", {"a": "1", "b": "2"})
    assert preset.options(0.1, {"b": "3", "c": "4"}) == {"a": "1", "b": "3", "c": "4"}
    assert find_strategy("ccs").preset("").options(0.1, {"a": "1"}) == {"a": "1"}


def test_an_unknown_preset_is_refused_with_those_that_there_are() -> None:
    words = r"'dual' has no preset 'papre'\. Choose one of: paper, paper-cifar100, paper-imagenet,"
    with pytest.raises(UnknownNameError, match=words):
        find_strategy("dual").preset("papre")
    with pytest.raises(UnknownNameError, match=r"'grand' has no preset 'paper'\. It has none, or"):
        find_strategy("grand").preset("paper")


def test_between_its_papers_fractions_ccs_drops_along_straight_lines() -> None:
    betas = {0.01: "0.3", 0.1: "0.3", 0.15: "0.25", 0.2: "0.2", 0.35: "0.1", 0.5: "0", 1: "0"}
    preset = find_strategy("ccs").preset("paper")
    assert {fraction: preset.options(fraction, {})["beta"] for fraction in betas} == betas


@pytest.mark.parametrize(("strategy", "name"), PRESETS)
@pytest.mark.parametrize("fraction", [1e-6, 0.1, 0.3, 1.0])
def test_every_preset_can_be_asked_for(strategy: Strategy, name: str, fraction: float) -> None:
    preset = strategy.preset(name)
    assert preset.summary.strip(" .") == preset.summary != ""
    strategy.parse_options(preset.options(fraction, {}))
    strategy.resolve_balance(preset.balanced)


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


@pytest.mark.parametrize(
    "text", ["", "15", "epochs", "epochs:", "epochs:-1", "epochs:1x0", "epochs:nan", "epochs:1e3"]
)
def test_anything_else_is_no_warm_up(text: str) -> None:
    with pytest.raises(ValueError, match="is no pre-training"):
        WarmUp.parse(text)


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
