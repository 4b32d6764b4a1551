from __future__ import annotations

from typing import Annotated, Literal

import pytest
from pydantic import Field

from lipt.common.errors import StrategyOptionError
from lipt.core.selection.options import (
    options_of,
    parse_options,
    takes_balanced,
    takes_seed,
)


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
    for takes in (takes_seed, takes_balanced):
        assert takes(example)
        assert not takes(lambda signals, budget: None)


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
