from __future__ import annotations

import inspect

import pytest

from lipt.common.errors import StrategyOptionError, UnknownNameError
from lipt.core.proxies.proxy import Proxy
from lipt.core.selection.registry import STRATEGIES, find_strategy
from lipt.core.selection.strategy import Balance, Strategy

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


def test_strategies_of_one_look_at_every_example_are_known() -> None:
    linear = {name for name, strategy in STRATEGIES.items() if strategy.is_linear}
    assert linear == {
        *("uniform", "uniform_per_class", "el2n", "grand", "entropy", "margin"),
        *("least_confidence", "moderate", "ccs", "forgetting", "aum", "dual", "disagreement"),
        "clip_score",
    }


@pytest.mark.parametrize("strategy", ALL)
def test_every_option_says_what_it_is(strategy: Strategy) -> None:
    for option in strategy.options:
        assert option.help.strip(" .") == option.help != "", option.name


@pytest.mark.parametrize("strategy", ALL)
def test_defaults_are_among_the_allowed_values(strategy: Strategy) -> None:
    given = {option.name: option.default for option in strategy.options}
    assert strategy.parse_options(given) == strategy.parse_options({})


def test_every_strategys_proxy_is_one() -> None:
    for strategy in STRATEGIES.values():
        assert str(Proxy.parse(strategy.proxy)) == strategy.proxy


def test_random_baselines_need_nothing_but_labels() -> None:
    for name in ("uniform", "uniform_per_class"):
        assert find_strategy(name).default_needs() == set()


@pytest.mark.parametrize(
    ("name", "by_default", "refused"),
    [
        ("uniform", False, True),
        ("uniform_per_class", True, False),
        ("el2n", True, None),
        ("grand", True, None),
        ("moderate", False, None),
    ],
)
def test_balance(name: str, *, by_default: bool, refused: bool | None) -> None:
    strategy = find_strategy(name)
    assert strategy.resolve_balance(None) is by_default
    assert strategy.resolve_balance(by_default) is by_default
    if refused is None:
        assert strategy.balance in {Balance.BY_DEFAULT, Balance.ON_REQUEST}
        assert strategy.resolve_balance(not by_default) is not by_default
        return
    with pytest.raises(StrategyOptionError, match=rf"'{name}' is .* per class\. Use uniform"):
        strategy.resolve_balance(refused)
