"""Proxy: the one grammar that users see."""

from __future__ import annotations

import pytest

from lipt.common.errors import ProxyError
from lipt.core.proxies.proxy import SOUP, Kind, Proxy


@pytest.mark.parametrize(
    "text", ["soup", "auto", "ridge:patches", "ridge:soup", "ridge:user+patches+learners+backbone"]
)
def test_a_text_comes_back(text: str) -> None:
    assert str(Proxy.parse(text)) == text


def test_equal_questions_are_one_text() -> None:
    first, second = Proxy.parse("ridge:learners+patches"), Proxy.parse("ridge:patches+learners")
    assert first == second
    assert str(first) == "ridge:patches+learners"


@pytest.mark.parametrize(
    "text",
    ["", "ridge", "ridge:", "ridge:soup+", "ridge:cats", "patches", "ridge:soup+soup", "Soup"],
)
def test_another_text_is_refused_with_all_that_there_are(text: str) -> None:
    with pytest.raises(
        ProxyError, match=r"user, patches, columns, soup, initial, learners, backbone"
    ) as refusal:
        Proxy.parse(text)
    assert repr(text) in str(refusal.value)


def test_soup_is_the_only_one_with_a_models_own_head() -> None:
    assert Proxy.parse("soup") == SOUP
    assert SOUP.is_own_head
    assert not Proxy.parse("ridge:soup").is_own_head
    assert not Proxy.parse("auto").is_own_head


def test_a_choice_may_use_everything() -> None:
    assert all(Proxy.parse("auto").may_use(kind) for kind in Kind)
    assert [kind for kind in Kind if Proxy.parse("ridge:patches").may_use(kind)] == [Kind.PATCHES]
    assert not any(SOUP.may_use(kind) for kind in Kind)


def test_theta_star_needs_no_learners_unless_they_are_beside_it() -> None:
    assert Proxy.parse("ridge:initial").judges_before_learners
    assert Proxy.parse("ridge:initial+patches+user").judges_before_learners
    for text in ("auto", "soup", "ridge:patches", "ridge:initial+soup", "ridge:initial+learners"):
        assert not Proxy.parse(text).judges_before_learners
