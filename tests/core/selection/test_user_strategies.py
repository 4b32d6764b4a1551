import itertools
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import pytest
import torch
from pydantic import Field

import lipt
from lipt.common.errors import ConfigError, ProxyError, StrategyError
from lipt.core.selection import select as registry
from lipt.core.selection.select import STRATEGIES, select
from lipt.core.selection.strategy import VIEWS, Balance, Growth, Strategy
from lipt.core.signals.signals import Signals, labels_only
from lipt.core.signals.views import Need
from lipt.data.targets.kinds import TargetKind
from tests.core.selection.builders import signals_of


@pytest.fixture(autouse=True)
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "STRATEGIES", dict(STRATEGIES))


def first(labels: lipt.ExampleLabels, budget: int) -> lipt.Selection:
    return lipt.Selection(torch.arange(budget), torch.ones(budget))


described = partial(lipt.strategy, summary="the first rows")


def of_features(features: lipt.Features, budget: int) -> lipt.Selection:
    assert len(features.features_ND) == 12
    return lipt.Selection(torch.arange(budget), torch.ones(budget))


def of_two(layer: lipt.LastLayer, held: lipt.ValidationSignals, budget: int) -> lipt.Selection: ...


Either = Annotated[Literal["layer", "norms"], "what is looked at"]


def of_either(
    view: lipt.LastLayer | lipt.GradientNorms, budget: int, *, space: Either = "layer"
) -> lipt.Selection: ...


def test_the_types_of_the_parameters_are_the_needs() -> None:
    assert described()(first).needs_of({}) == set()
    assert described()(of_two).needs_of({}) == {Need.SIGNALS, Need.VALIDATION}
    strategy = described(balance="never")(of_features)
    assert strategy.needs_of({}) == {Need.FEATURES}
    data = (np.eye(4).repeat(3, axis=0), np.arange(12) % 2)
    chosen = lipt.select(data, budget=4, strategy="of_features", balanced=False, progress=False)
    assert len(chosen) == 4


def test_options_choose_among_the_types_of_a_union() -> None:
    types = {"layer": lipt.LastLayer, "norms": lipt.GradientNorms}
    strategy = described(needs=lambda options: types[options["space"]])(of_either)
    assert strategy.needs_of({}) == {Need.SIGNALS}
    assert strategy.needs_of({"space": "norms"}) == {Need.GRADIENT_NORMS}


def of_whole(signals: Signals, budget: int) -> lipt.Selection: ...


def of_tensor(features: torch.Tensor, budget: int) -> lipt.Selection: ...


def of_no_type(features, budget: int) -> lipt.Selection: ...  # type: ignore[no-untyped-def] # noqa: ANN001


@pytest.mark.parametrize("function", [of_whole, of_tensor, of_no_type])
def test_a_parameter_that_is_no_view_is_refused_with_the_views(
    function: Callable[..., lipt.Selection],
) -> None:
    words = r"of strategy 'of_.*' has no type of a view\. Write one of ExampleLabels, Features, La"
    with pytest.raises(ConfigError, match=words) as refused:
        described()(function)
    assert len(str(refused.value)) <= 300
    assert all(hasattr(lipt, view.__name__) for view in VIEWS)


@pytest.mark.parametrize("needs", [None, lambda _: None, lambda _: lipt.Features])
def test_a_union_without_a_choice_of_its_types_is_refused(needs: Any) -> None:
    with pytest.raises(ConfigError, match="view of strategy 'of_either' has 2 types, and `needs`"):
        described(needs=needs)(of_either)


def doubled(features: lipt.Features, *, factor: int = 2) -> lipt.Features:
    return lipt.Features(features.features_ND * factor, features.labels_N)


def test_what_is_prepared_is_taken_by_its_type() -> None:
    def largest(features: lipt.Features, budget: int) -> lipt.Selection:
        assert features.features_ND.max() == 6
        return lipt.Selection(torch.arange(budget), torch.ones(budget))

    strategy = described(prepare=doubled)(largest)
    assert strategy.needs_of({}) == {Need.FEATURES}
    signals = signals_of(torch.tensor([[1.0], [3.0]]))
    for chosen in (strategy(signals, 1), select(strategy, signals, 1, balanced=True, seed=0)):
        assert chosen.indices_K.tolist() == [0]
    with pytest.raises(TypeError, match="unexpected keyword argument 'facter'"):
        strategy(signals, 1, facter=3)
    with pytest.raises(ConfigError, match="`prepare` of strategy 'first' returns no view that"):
        described(prepare=doubled)(first)


def test_kinds_balance_and_cost_are_names() -> None:
    about = {"kinds": ["class", "number"], "balance": "never", "cost": "linear"}
    strategy = described(**about)(first)
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
        ({"needs": ["features"]}, r"needs=\['features'\] is not a function"),
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


def without_budget(labels: lipt.ExampleLabels) -> lipt.Selection: ...


def any_keywords(labels: lipt.ExampleLabels, budget: int, **options: int) -> lipt.Selection: ...


def without_default(labels: lipt.ExampleLabels, budget: int, *, beta: float) -> lipt.Selection: ...


def without_type(  # type: ignore[no-untyped-def]
    labels: lipt.ExampleLabels,
    budget: int,
    *,
    beta=1.0,  # noqa: ANN001
) -> lipt.Selection: ...


def of_another_type(
    labels: lipt.ExampleLabels, budget: int, *, beta: lipt.Subset | None = None
) -> lipt.Selection: ...


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (without_budget, r"'without_budget' takes \(labels.*\. Take \(view, budget\), and opt"),
        (any_keywords, r"'any_keywords' takes .* Take \(view, budget\)"),
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
        labels: lipt.ExampleLabels,
        budget: int,
        *,
        beta: Annotated[float, Field(ge=0), "a share"] = 0.5,
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
    def given(labels: lipt.ExampleLabels, budget: int) -> lipt.Selection:
        result: lipt.Selection = found
        return result

    strategy = described()(given)
    labels = labels_only(torch.zeros(5, dtype=torch.int64))
    with pytest.raises(StrategyError, match=words):
        select(strategy, labels, 3, balanced=False, seed=0)


@pytest.mark.parametrize(
    ("rows", "weights"), [(np.array([4, 2]), np.ones(2)), ([4, 2], [1, 1])], ids=["array", "list"]
)
def test_rows_and_weights_may_be_arrays_or_lists(rows: Any, weights: Any) -> None:
    def given(labels: lipt.ExampleLabels, budget: int) -> lipt.Selection:
        return lipt.Selection(rows, weights)

    labels = labels_only(torch.zeros(5, dtype=torch.int64))
    chosen = select(described()(given), labels, 2, balanced=False, seed=0)
    assert chosen.indices_K.tolist() == [2, 4]
