import itertools
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import numpy as np
import pytest
import torch
from pydantic import Field

import lipt
from lipt.common.errors import ConfigError, ProxyError, StrategyError
from lipt.core.selection import select as registry
from lipt.core.selection.select import STRATEGIES, select
from lipt.core.selection.strategy import FEATURES, NOTHING, Balance, Growth, Need, Strategy
from lipt.core.signals.signals import labels_only
from lipt.data.targets.kinds import TargetKind


@pytest.fixture(autouse=True)
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "STRATEGIES", dict(STRATEGIES))


def first(signals: lipt.Signals, budget: int) -> lipt.Selection:
    return lipt.Selection(torch.arange(budget), torch.ones(budget))


described = partial(lipt.strategy, summary="the first rows")


@pytest.mark.parametrize(
    "needs",
    ["features", ("features",), ["features"], {"features"}, [Need.FEATURES], FEATURES],
    # Some values have an address in their text.
    ids=map(str, itertools.count()),
)
def test_needs_are_names_in_any_collection(needs: Any) -> None:
    strategy = described(needs=needs)(first)
    assert strategy.needs_of({}) == FEATURES
    assert described(needs=lambda _: needs)(first).needs_of({}) == FEATURES
    data = (np.eye(4).repeat(3, axis=0), np.arange(12) % 2)
    assert len(lipt.select(data, budget=4, strategy="first", progress=False)) == 4


def test_kinds_balance_and_cost_are_names() -> None:
    about = {"kinds": ["class", "number"], "balance": "never", "cost": "linear"}
    strategy = described(needs=(), **about)(first)
    assert strategy.needs_of({}) == NOTHING
    assert strategy.kinds_of({}) == {TargetKind.CLASS, TargetKind.NUMBER}
    assert strategy.balance is Balance.NEVER
    assert (strategy.cost.growth, str(strategy.cost)) == (Growth.LINEAR, "linear")


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ({"summary": ""}, "has no summary, what it keeps. Give one"),
        ({"summary": 3}, "summary=3 is not a text"),
        (
            {"need": ["features"]},
            r"has no field 'need'\. Did you mean needs\? Give some of: summary",
        ),
        (
            {"needs": ["feature"]},
            r"needs=\['feature'\] is none of signals, features, gradient norms",
        ),
        ({"needs": 3}, "needs=3 is none of signals"),
        ({"needs": lambda _: ["feature"]}, r"needs=\['feature'\] is none of signals"),
        ({"kinds": "regression"}, "kinds='regression' is none of class, classes, number"),
        ({"balance": "Never"}, "balance='Never' is none of by_default, on_request, never, always"),
        ({"cost": "N"}, "cost='N' is none of linear, pairs, iterations, unknown"),
        ({"returns_weights": "yes"}, "returns_weights='yes' is not True or False"),
        ({"revision": -1}, "revision=-1 is not a whole number from 0"),
        ({"presets": {"paper": {}}}, "presets=.* is not a dictionary of .*Preset by name"),
        ({"prepare": 3}, "prepare=3 is not a function"),
    ],
    # Some values have an address in their text.
    ids=map(str, itertools.count()),
)
def test_invalid_fields_are_refused_at_the_decorator(about: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        lipt.strategy(**{"summary": "the first rows", **about})(first)
    assert len(str(refused.value)) <= 200
    assert "first" not in registry.STRATEGIES


def test_an_unknown_proxy_and_a_decorator_without_parentheses_are_refused() -> None:
    with pytest.raises(ProxyError, match="there is no proxy 'Soup'"):
        described(proxy="Soup")(first)
    with pytest.raises(ConfigError, match=r"has no summary.*@lipt\.strategy\(summary="):
        lipt.strategy(first)
    with pytest.raises(ConfigError, match="decorates a type, and needs a function of"):
        described()(Strategy)


def without_budget(signals: lipt.Signals) -> lipt.Selection: ...


def any_keywords(signals: lipt.Signals, budget: int, **options: int) -> lipt.Selection: ...


def without_default(signals: lipt.Signals, budget: int, *, beta: float) -> lipt.Selection: ...


def without_type(  # type: ignore[no-untyped-def]
    signals: lipt.Signals,
    budget: int,
    *,
    beta=1.0,  # noqa: ANN001
) -> lipt.Selection: ...


def of_another_type(
    signals: lipt.Signals, budget: int, *, beta: lipt.Subset | None = None
) -> lipt.Selection: ...


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (without_budget, r"'without_budget' takes \(signals.*\. Take \(signals, budget\), and opt"),
        (any_keywords, r"'any_keywords' takes .* Take \(signals, budget\)"),
        (without_default, "option beta of strategy 'without_default' lacks a type or a default"),
        (without_type, r"option beta .* lacks a type or a default\. Write beta: int = 0"),
        (of_another_type, "the options of strategy 'of_another_type' cannot be read"),
    ],
)
def test_an_invalid_signature_is_refused_at_the_decorator(
    function: Callable[..., lipt.Selection], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        described()(function)


def test_options_with_notes_are_accepted() -> None:
    def noted(
        signals: lipt.Signals, budget: int, *, beta: Annotated[float, Field(ge=0), "a share"] = 0.5
    ) -> lipt.Selection: ...

    noted.__annotations__["beta"] = Annotated[float, Field(ge=0), "a share"]
    assert described()(noted).parse_options({"beta": "0.25"})["beta"] == 0.25


ONES = torch.ones(3)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ([0, 1, 2], r"'given' returned a list\. Return lipt\.Selection\(rows, weights\)"),
        (torch.arange(3), "'given' returned a Tensor"),
        (None, "'given' returned a NoneType"),
        (lipt.Selection(torch.tensor([0.0, 1.0, 2.0]), ONES), r"rows of torch\.float32 and shape"),
        (lipt.Selection(torch.tensor([True, False, True]), ONES), r"rows of torch\.bool"),
        (lipt.Selection(torch.eye(3).long(), ONES), r"shape \[3, 3\]\. Return row numbers, a vec"),
        (lipt.Selection("rows", ONES), r"and shape \[0\]"),  # type: ignore[arg-type]
        (lipt.Selection(torch.tensor([0, 0, 1]), ONES), r"3 rows \(2 distinct\) and 3 weights"),
        (lipt.Selection(torch.tensor([0, 1]), ONES[:2]), "2 rows .* for a budget of 3 among 5 ex"),
        (lipt.Selection(torch.tensor([0, 1, 9]), ONES), "3 rows .* among 5 examples. Return so m"),
        (lipt.Selection(torch.tensor([-1, 0, 1]), ONES), "3 rows"),
        (lipt.Selection(torch.arange(3), ONES[:2]), r"3 rows \(3 distinct\) and 2 weights"),
        (lipt.Selection(torch.arange(3), ONES * torch.nan), "finite weights from 0"),
    ],
    ids=range(13),
)
def test_a_result_that_is_no_selection_is_refused(found: Any, words: str) -> None:
    def given(signals: lipt.Signals, budget: int) -> lipt.Selection:
        result: lipt.Selection = found
        return result

    strategy = described(needs=())(given)
    labels = labels_only(torch.zeros(5, dtype=torch.int64))
    with pytest.raises(StrategyError, match=words):
        select(strategy, labels, 3, balanced=False, seed=0)


@pytest.mark.parametrize(
    ("rows", "weights"), [(np.array([4, 2]), np.ones(2)), ([4, 2], [1, 1])], ids=["array", "list"]
)
def test_rows_and_weights_may_be_arrays_or_lists(rows: Any, weights: Any) -> None:
    def given(signals: lipt.Signals, budget: int) -> lipt.Selection:
        return lipt.Selection(rows, weights)

    labels = labels_only(torch.zeros(5, dtype=torch.int64))
    chosen = select(described(needs=())(given), labels, 2, balanced=False, seed=0)
    assert chosen.indices_K.tolist() == [2, 4]
