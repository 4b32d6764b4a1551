"""Which requests can be answered without labels, and why the others cannot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from lipt.common.errors import InvalidRequestError, ProxyError, StrategyOptionError
from lipt.core.proxies.proxy import SOUP, Proxy
from lipt.core.selection.registry import STRATEGIES, find_strategy
from lipt.core.selection.strategy import FEATURES, Balance, Need, Strategy
from lipt.core.selection.without_labels import (
    Labels,
    Unlabelled,
    without_labels,
    works_without_labels,
)

ABLE = {
    *("uniform", "facility_location", "subzerocore", "graph_cut", "log_det", "kcenter"),
    *("herding", "moderate", "stratified", "zcore", "milo", "sas"),
}
WITH_A_SPACE = ["facility_location", "graph_cut", "kcenter", "log_det"]


def ask(
    strategy: str | Strategy, options: Mapping[str, str] | None = None, **others: Any
) -> Unlabelled:
    plain: dict[str, Any] = {
        "balanced": None,
        "proxy": "",
        "own_features": False,
        "own_weights": False,
    }
    entry = find_strategy(strategy) if isinstance(strategy, str) else strategy
    return without_labels(entry, options or {}, **plain | others)


@pytest.mark.parametrize(("text", "meant"), [("", "given"), ("given", "given"), ("none", "none")])
def test_a_request_that_says_nothing_has_its_labels(text: str, meant: str) -> None:
    assert Labels.parse(text) is Labels(meant)


def test_anything_else_is_refused_with_the_choice() -> None:
    with pytest.raises(InvalidRequestError, match=r"labels = 'some': choose one of given, none\."):
        Labels.parse("some")


def test_those_that_look_at_features_or_nothing_can() -> None:
    able = {name for name, strategy in STRATEGIES.items() if works_without_labels(strategy)}
    assert able == ABLE


@pytest.mark.parametrize("name", sorted(ABLE))
def test_every_one_that_can_is_let_through(name: str) -> None:
    assert ask(name).proxy == Proxy.parse("ridge:patches")


@pytest.mark.parametrize("name", sorted(set(STRATEGIES) - ABLE))
def test_every_other_one_is_refused_with_those_that_can(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=rf"'{name}' cannot choose.*labels") as refusal:
        ask(name)
    listed = refusal.value.message.partition("Choose one of: ")[2].removesuffix(".").split(", ")
    assert set(listed) == ABLE
    assert listed == [name for name in STRATEGIES if name in ABLE]


def test_an_option_may_make_the_difference() -> None:
    made_up = replace(
        find_strategy("herding"),
        function=find_strategy("el2n").function,
        needs=lambda options: (
            FEATURES if options["models"] == "learners" else frozenset({Need.SIGNALS})
        ),
    )
    assert not works_without_labels(made_up)
    assert ask(made_up, {"models": "learners"}).options == {"models": "learners"}


def test_near_copies_are_of_pixels_and_no_reason_to_refuse() -> None:
    assert works_without_labels(replace(find_strategy("herding"), needs=frozenset({Need.COPIES})))


def test_what_is_always_balanced_cannot_and_is_not_in_the_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    balanced = replace(find_strategy("herding"), balance=Balance.ALWAYS)
    monkeypatch.setitem(STRATEGIES, "herding", balanced)
    with pytest.raises(InvalidRequestError, match=r"kcenter, moderate, stratified"):
        ask(balanced)


@pytest.mark.parametrize("name", WITH_A_SPACE)
def test_examples_are_compared_by_features_unless_said_otherwise(name: str) -> None:
    assert ask(name).options == {"space": "features"}
    assert ask(name, {"space": "features"}) == ask(name)
    with pytest.raises(StrategyOptionError, match=rf"space of strategy '{name}' cannot be 'grad"):
        ask(name, {"space": "gradients"})


def test_a_strategy_without_a_space_gets_none() -> None:
    assert ask("stratified", {"num_cells": "5"}).options == {"num_cells": "5"}
    with pytest.raises(StrategyOptionError, match="'stratified' has no option 'space'"):
        ask("stratified", {"space": "features"})


def test_classes_that_nobody_knows_cannot_be_balanced() -> None:
    assert ask("herding", balanced=False) == ask("herding")
    with pytest.raises(StrategyOptionError, match=r"its label says\. Leave `balanced` unset"):
        ask("herding", balanced=True)


def test_weights_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"trained on labels.*Leave `weights` unset"):
        ask("herding", own_weights=True)


@pytest.mark.parametrize(
    "proxy", ["ridge:patches", "ridge:user+patches", "ridge:backbone", "ridge:user"]
)
def test_a_proxy_of_features_that_no_label_went_into_is_taken(proxy: str) -> None:
    assert str(ask("herding", proxy=proxy).proxy) == proxy
    assert str(ask("herding", proxy=proxy, own_features=True).proxy) == proxy


def test_without_a_proxy_features_are_the_users_or_patches() -> None:
    assert ask("herding", own_features=True).proxy == SOUP
    assert str(ask("herding").proxy) == "ridge:patches"


@pytest.mark.parametrize(
    ("proxy", "why"),
    [
        ("soup", "labels have gone into soup"),
        ("ridge:soup", "labels have gone into soup"),
        ("ridge:learners+patches", "labels have gone into learners"),
        ("ridge:learners+soup", "labels have gone into soup and learners"),
        ("auto", "it is whichever is right about the most labels"),
    ],
)
def test_a_proxy_that_labels_went_into_is_refused(proxy: str, why: str) -> None:
    remedy = (
        r"one or more of user, patches, columns, backbone, joined by \+, such as ridge:patches; or"
    )
    with pytest.raises(ProxyError, match=rf"with labels=none: {why}\..*{remedy}"):
        ask("herding", proxy=proxy, own_features=True)
    with pytest.raises(ProxyError, match="there is no proxy 'best'"):
        ask("uniform", proxy="best")


def test_where_there_are_no_images_the_values_of_columns_are_looked_at() -> None:
    assert ask("kcenter", images=False).proxy == Proxy.parse("ridge:columns")
    with pytest.raises(ProxyError, match=r"such as ridge:columns; or .* or else columns\."):
        ask("kcenter", proxy="auto", images=False)
