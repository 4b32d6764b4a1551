import inspect
from collections.abc import Mapping
from types import SimpleNamespace

import pytest
import torch

import lipt
from lipt.common.errors import StrategyOptionError, UnknownNameError
from lipt.core.selection import registry
from lipt.core.selection.registry import STRATEGIES, find_strategy
from lipt.core.selection.select import select
from lipt.core.selection.selection import Selection
from lipt.core.selection.strategy import NOTHING, Strategy
from lipt.core.signals.signals import Signals, labels_only
from tests.core.selection.builders import full_signals, signals_of


def choose(
    strategy: Strategy,
    signals: Signals,
    budget: int,
    *,
    balanced: bool,
    options: Mapping[str, str] | None = None,
    seed: int = 0,
) -> Selection:
    parsed = strategy.parse_options(options or {})
    return select(strategy, signals, budget, balanced=balanced, seed=seed, options=parsed)


@pytest.mark.parametrize("name", ["el2n", "grand"])
def test_balanced_keeps_the_highest_scores_of_each_class(name: str) -> None:
    signals = full_signals([0, 1, 1, 1] * 10)
    strategy = find_strategy(name)
    chosen = choose(strategy, signals, 12, balanced=True)
    expected: list[int] = []
    for label in (0, 1):
        rows = torch.nonzero(signals.labels_N == label).flatten()
        part = strategy.function(signals.take(rows), 6)
        expected += rows[part.indices_K].tolist()
    assert chosen.indices_K.tolist() == sorted(expected)


def test_weights_stay_with_their_indices() -> None:
    def backwards(signals: Signals, budget: int) -> Selection:
        rows = torch.arange(len(signals)).flip(0)[:budget]
        return Selection(rows, signals.features_ND[rows, 0])

    signals = signals_of(torch.arange(6.0)[:, None], labels=[0, 1] * 3)
    strategy = Strategy(backwards, "the last ones", returns_weights=True)
    for balanced in (False, True):
        chosen = choose(strategy, signals, 4, balanced=balanced)
        assert chosen.indices_K.tolist() == [2, 3, 4, 5]
        assert chosen.weights_K.tolist() == [2.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize("rows", [[0, 0, 1], [0, 1], [0, 1, 9], [-1, 0, 1]])
def test_a_strategy_that_breaks_its_promise_is_found_out(rows: list[int]) -> None:
    def broken(signals: Signals, budget: int) -> Selection:
        return Selection(torch.tensor(rows), torch.ones(len(rows)))

    strategy = Strategy(broken, "too few", needs=NOTHING)
    labels = labels_only(torch.zeros(5, dtype=torch.int64))
    with pytest.raises(RuntimeError, match=r"'broken' answered with . indices.*budget of 3"):
        choose(strategy, labels, 3, balanced=False)


ALL = [pytest.param(strategy, id=name) for name, strategy in STRATEGIES.items()]


def test_an_unknown_strategy_is_refused_with_all_names() -> None:
    with pytest.raises(UnknownNameError, match="no strategy 'Grand'") as refusal:
        find_strategy("Grand")
    assert all(name in refusal.value.message for name in STRATEGIES)


@pytest.mark.parametrize("strategy", ALL)
def test_entries_describe_their_functions(strategy: Strategy) -> None:
    assert find_strategy(strategy.name) is strategy
    assert strategy.summary
    parameters = list(inspect.signature(strategy.function).parameters.values())
    assert [parameter.name for parameter in parameters[:2]] == ["signals", "budget"]
    for parameter in parameters[2:]:
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
        assert (
            parameter.name in {"seed", "balanced"}
            or parameter.default is not inspect.Parameter.empty
        )
    for option in strategy.options:
        assert option.help.strip(" .") == option.help != "", option.name


def test_strategies_of_one_look_at_every_example_are_known() -> None:
    linear = {name for name, strategy in STRATEGIES.items() if strategy.is_linear}
    assert linear == {
        *("uniform", "uniform_per_class", "el2n", "grand", "entropy", "margin"),
        *("least_confidence", "moderate", "ccs", "forgetting", "aum", "dual", "disagreement"),
        "clip_score",
    }


@pytest.mark.parametrize(
    ("name", "by_default", "other"),
    [
        *(("uniform", False, False), ("uniform_per_class", True, False)),
        *(("el2n", True, True), ("grand", True, True), ("moderate", False, True)),
    ],
)
def test_balance(name: str, *, by_default: bool, other: bool) -> None:
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
    def newest(signals: lipt.Signals, budget: int, *, skipped: int = 0) -> lipt.Selection:
        rows = torch.arange(len(signals)).flip(0)[skipped : skipped + budget]
        return lipt.Selection(rows, torch.ones(len(rows)))

    assert isinstance(newest, lipt.Strategy)
    assert registry.find_strategy("newest") is newest
    signals = signals_of(errors_NC=torch.ones(6, 2))
    chosen = choose(newest, signals, 2, balanced=False, options={"skipped": "1"})
    assert chosen.indices_K.tolist() == [3, 4]
    assert not newest.is_linear
    with pytest.raises(ValueError, match="there is a strategy 'el2n' already"):
        lipt.strategy(summary="another")(registry.find_strategy("el2n").function)
    with pytest.raises(TypeError, match="sumary"):
        lipt.strategy(sumary="misspelt")(newest.function)


def test_modules_that_entry_points_name_are_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []
    entry = SimpleNamespace(load=lambda: loaded.append("mine"))
    found = {"group": "lipt.strategy"}
    monkeypatch.setattr(registry, "entry_points", lambda **asked: [entry] * (asked == found))
    registry._import_registered()
    assert loaded == ["mine"]
