import inspect
from dataclasses import replace
from functools import partial
from itertools import permutations
from types import SimpleNamespace
from typing import Annotated, Literal

import pytest
import torch
from pydantic import Field

import lipt
from lipt.common.errors import ConfigError, SignalsError, StrategyOptionError, UnknownNameError
from lipt.common.requests import WarmUp
from lipt.core.selection import select as registry
from lipt.core.selection.select import STRATEGIES, find_strategy, select
from lipt.core.selection.selection import (
    Selection,
    draw_by_weight,
    keep_largest,
)
from lipt.core.selection.strategy import Cost, Growth, Preset, Strategy, options_of
from lipt.core.signals.views import ExampleLabels, Features
from tests.core.selection.builders import full_signals, signals_of

choose = partial(select, seed=0)


@pytest.mark.parametrize("name", ["el2n", "grand"])
def test_balanced_keeps_the_highest_scores_of_each_class(name: str) -> None:
    signals = full_signals([0, 1, 1, 1] * 10)
    strategy = find_strategy(name)
    chosen = choose(strategy, signals, 12, balanced=True)
    expected: list[int] = []
    for label in (0, 1):
        rows = torch.nonzero(signals.labels_N == label).flatten()
        part = strategy(signals.take(rows), 6)
        expected += rows[part.indices_K].tolist()
    assert chosen.indices_K.tolist() == sorted(expected)


def test_weights_stay_with_their_indices() -> None:
    def backwards(features: Features, budget: int) -> Selection:
        rows = torch.arange(len(features)).flip(0)[:budget]
        return Selection(rows, features.features_ND[rows, 0])

    signals = signals_of(torch.arange(6.0)[:, None], labels=[0, 1] * 3)
    strategy = Strategy(backwards, "the last ones", returns_weights=True)
    for balanced in (False, True):
        chosen = choose(strategy, signals, 4, balanced=balanced)
        assert chosen.indices_K.tolist() == [2, 3, 4, 5]
        assert chosen.weights_K.tolist() == [2.0, 3.0, 4.0, 5.0]


def test_signals_that_are_missing_or_not_finite_are_refused() -> None:
    clip_score, whole = find_strategy("clip_score"), full_signals([0, 1] * 5)
    for paired_NP, words in (
        (None, "have no paired features"),
        (whole.features_ND / 0, "not fini"),
    ):
        with pytest.raises(SignalsError, match=words):
            choose(clip_score, replace(whole, paired_features_NP=paired_NP), 4, balanced=False)


def test_an_unknown_strategy_is_refused_with_all_names() -> None:
    with pytest.raises(UnknownNameError, match="no strategy 'Grand'") as refusal:
        find_strategy("Grand")
    assert "Did you mean grand? `lipt strategies` lists all." in refusal.value.message
    with pytest.raises(UnknownNameError) as unlike:
        find_strategy("xyz")
    assert all(name in unlike.value.message for name in STRATEGIES)


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_entries_describe_their_functions(strategy: Strategy) -> None:
    assert find_strategy(strategy.name) is strategy
    assert strategy.summary
    parameters = list(inspect.signature(strategy.function).parameters.values())
    views = len(strategy.view_types(strategy.function, strategy.parse_options({})))
    assert views > 0
    assert parameters[views].name == "budget"
    for parameter in parameters[views + 1 :]:
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
        assert (
            parameter.name in {"seed", "balanced"}
            or parameter.default is not inspect.Parameter.empty
        )
    for option in strategy.options:
        assert option.help.strip(" .") == option.help != "", option.name


def test_linear_strategies_are_listed() -> None:
    linear = {
        name for name, strategy in STRATEGIES.items() if strategy.cost.growth is Growth.LINEAR
    }
    assert linear == {
        *("uniform", "uniform_per_class", "el2n", "grand", "entropy", "margin"),
        *("least_confidence", "moderate", "ccs", "forgetting", "aum", "dual", "disagreement"),
        *("clip_score", "loss_drop", "rds_plus", "bm25", "perplexity", "ifd"),
    }


@pytest.mark.parametrize(
    ("name", "by_default", "other"),
    [
        *(("uniform", False, False), ("uniform_per_class", True, False)),
        *(("el2n", True, True), ("grand", True, True), ("moderate", False, True)),
    ],
)
def test_balanced_selection_has_equal_shares(name: str, *, by_default: bool, other: bool) -> None:
    strategy = find_strategy(name)
    assert strategy.resolve_balance(None) is by_default
    assert strategy.resolve_balance(by_default) is by_default
    if other:
        assert strategy.resolve_balance(not by_default) is not by_default
    else:
        with pytest.raises(StrategyOptionError, match=rf"'{name}' is .* per class\. Use uniform"):
            strategy.resolve_balance(not by_default)


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "STRATEGIES", dict(STRATEGIES))


@pytest.mark.usefixtures("own")
def test_a_decorated_function_is_a_strategy_by_its_name() -> None:
    @lipt.strategy(summary="the last ones", revision=2)
    def newest(layer: lipt.LastLayer, budget: int, *, skipped: int = 0) -> lipt.Selection:
        rows = torch.arange(len(layer)).flip(0)[skipped : skipped + budget]
        return lipt.Selection(rows, torch.ones(len(rows)))

    assert isinstance(newest, lipt.Strategy)
    assert registry.find_strategy("newest") is newest
    signals = signals_of(errors_NC=torch.ones(6, 2))
    chosen = choose(newest, signals, 2, balanced=False, options={"skipped": 1})
    assert chosen.indices_K.tolist() == [3, 4]
    assert newest.cost == Cost()
    with pytest.raises(ConfigError, match="there is a strategy 'margin' already"):
        lipt.strategy(summary="another")(registry.find_strategy("margin").function)
    assert lipt.strategy(newest.function, summary="the last ones") == registry.STRATEGIES["newest"]


def test_modules_that_entry_points_name_are_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []
    entry = SimpleNamespace(load=lambda: loaded.append("mine"))
    found = {"group": "lipt.strategy"}
    monkeypatch.setattr(registry, "entry_points", lambda **asked: [entry] * (asked == found))
    registry._import_registered()
    assert loaded == ["mine"]


def example(
    labels: ExampleLabels,
    budget: int,
    *,
    balanced: bool,
    seed: int,
    solver: Literal["lazy", "stochastic"] = "lazy",
    penalty: Annotated[float, Field(gt=0, le=1), "what large weights cost"] = 0.5,
    rounds: int = 15,
    exact: bool = False,
    limit: int | Literal["all"] = "all",
) -> Selection:
    """Has an option of every kind."""
    raise NotImplementedError


EXAMPLE = Strategy(example, "an example")
OPTIONS = options_of(example)


def test_options_are_keyword_only_parameters_given_as_texts() -> None:
    assert {option.name: (option.default, option.allowed) for option in OPTIONS} == {
        "solver": ("lazy", ("lazy", "stochastic")),
        "penalty": ("0.5", ("number > 0 and <= 1",)),
        "rounds": ("15", ("integer",)),
        "exact": ("false", ("true", "false")),
        "limit": ("all", ("integer", "all")),
    }
    assert [option.help for option in OPTIONS] == ["", "what large weights cost", "", "", ""]
    given = {"solver": "stochastic", "penalty": "0.25", "exact": "true", "limit": "3"}
    expected = {"solver": "stochastic", "penalty": 0.25, "rounds": 15, "exact": True, "limit": 3}
    assert EXAMPLE.parse_options(given) == expected
    assert EXAMPLE.parse_options({})["limit"] == "all"


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
def test_a_wrong_value_is_refused_with_the_right_ones(name: str, text: str, allowed: str) -> None:
    with pytest.raises(StrategyOptionError) as refusal:
        EXAMPLE.parse_options({name: text})
    assert refusal.value.message == (
        f"option {name} of strategy 'example' cannot be {text!r}. Choose one of: {allowed}."
    )


def test_an_unknown_option_is_refused_with_all_that_there_are() -> None:
    with pytest.raises(StrategyOptionError, match=r"no option 'sede'\..*solver \(lazy \| stochas"):
        EXAMPLE.parse_options({"sede": "1"})
    with pytest.raises(StrategyOptionError, match=r"no option 'seed'\."):
        EXAMPLE.parse_options({"seed": "1"})
    with pytest.raises(StrategyOptionError, match=r"no option 'x'\. It takes none\."):
        find_strategy("uniform").parse_options({"x": "1"})


def test_options_win_over_a_preset_and_unknown_ones_are_refused() -> None:
    preset = Preset("both", {"a": "1", "b": "2"})
    assert preset.options(0.1, {"b": "3", "c": "4"}) == {"a": "1", "b": "3", "c": "4"}
    assert find_strategy("ccs").preset("").options(0.1, {"a": "1"}) == {"a": "1"}
    words = r"'dual' has no preset 'papre'\. Choose one of: paper, paper-cifar100, paper-imagenet,"
    with pytest.raises(UnknownNameError, match=words):
        find_strategy("dual").preset("papre")
    with pytest.raises(UnknownNameError, match=r"'grand' has no preset 'paper'\. It has none, or"):
        find_strategy("grand").preset("paper")


def test_ccs_interpolates_its_paper_s_settings() -> None:
    betas = {0.01: "0.3", 0.1: "0.3", 0.15: "0.25", 0.2: "0.2", 0.35: "0.1", 0.5: "0", 1: "0"}
    preset = find_strategy("ccs").preset("paper")
    assert {fraction: preset.options(fraction, {})["beta"] for fraction in betas} == betas


@pytest.mark.parametrize(
    ("strategy", "name"),
    [(known, preset) for known in STRATEGIES.values() for preset in known.presets],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
@pytest.mark.parametrize("fraction", [1e-6, 0.1, 0.3, 1.0])
def test_every_preset_is_valid(strategy: Strategy, name: str, fraction: float) -> None:
    preset = strategy.preset(name)
    assert preset.summary.strip(" .") == preset.summary != ""
    strategy.parse_options(preset.options(fraction, {}))
    strategy.resolve_balance(preset.balanced)


def test_strategies_with_a_model_have_the_warm_up_option() -> None:
    having = {
        name
        for name, strategy in STRATEGIES.items()
        if "pretraining" in [option.name for option in strategy.options[-1:]]
    }
    assert having.isdisjoint({"auto", "uniform", "uniform_per_class", "clipcov"})
    assert having.isdisjoint({"forgetting", "aum", "dual", "disagreement"})
    assert having >= {"grand", "el2n", "craig", "glister", "kcenter", "facility_location", "ccs"}
    assert WarmUp.parse("lipt") is None
    assert WarmUp.parse("epochs:2x3") == WarmUp(2.0, 3)


def test_the_largest_scores_come_first_and_ties_keep_data_set_order() -> None:
    chosen = keep_largest(torch.tensor([1.0, 5.0, 3.0, 5.0, 3.0]), budget=3)
    assert chosen.indices_K.tolist() == [1, 3, 2]
    assert chosen.weights_K.tolist() == [1.0] * 3


def draw(weights: list[float], budget: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    log_weights_N = torch.tensor(weights).log()
    return draw_by_weight(log_weights_N, budget, generator=generator).indices_K.tolist()


def test_weighted_draws_follow_their_probabilities() -> None:
    # The second is drawn by the weights of those that are left.
    weights = [1.0, 2.0, 5.0]
    expected = {
        (i, j): weights[i] / 8 * weights[j] / (8 - weights[i]) for i, j in permutations(range(3), 2)
    }
    drawn = [tuple(draw(weights, 2, seed)) for seed in range(4000)]
    for pair, probability in expected.items():
        # The deviation is 0.0077 at most.
        assert drawn.count(pair) / 4000 == pytest.approx(probability, abs=0.03)
    for seed in range(20):
        chosen = draw([0.0, 1.0, 0.0, 1.0], 4, seed)
        assert set(chosen[:2]) == {1, 3}
        assert chosen[2:] == [0, 2]


def test_strategies_that_take_a_seed_declare_that_they_draw() -> None:
    drawing = {name for name, known in STRATEGIES.items() if known.is_random}
    taking = {
        name
        for name, known in STRATEGIES.items()
        if "seed" in inspect.signature(known.function).parameters
    }
    assert drawing == taking
