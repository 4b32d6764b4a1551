import pytest

from lipt.common.errors import ProxyError
from lipt.core.proxies.proxy import Kind, Proxy, Tried, can_win, candidates, choose, hopeful


@pytest.mark.parametrize(
    "text", ["soup", "auto", "ridge:patches", "ridge:soup", "ridge:user+patches+learners+backbone"]
)
def test_a_text_comes_back_and_equal_questions_are_one_text(text: str) -> None:
    assert str(Proxy.parse(text)) == text
    assert Proxy.parse("ridge:learners+patches") == Proxy.parse("ridge:patches+learners")


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


PATCHES, OF_SOUP, LEARNERS = (Kind.PATCHES,), (Kind.SOUP,), (Kind.LEARNERS,)
BOTH = (Kind.PATCHES, Kind.LEARNERS)


def test_each_kind_is_tried_alone_and_the_dear_ones_beside_patches() -> None:
    assert candidates([Kind.LEARNERS, Kind.SOUP, Kind.PATCHES]) == [
        PATCHES,
        OF_SOUP,
        LEARNERS,
        BOTH,
    ]
    assert candidates([Kind.SOUP]) == [OF_SOUP]
    every = candidates(set(Kind) - {Kind.COLUMNS})
    assert len(every) == len(set(every)) == 10
    assert (Kind.USER, Kind.PATCHES) in every
    assert (Kind.PATCHES, Kind.BACKBONE) in every
    # Of examples that are no images, their values take that place.
    beside = [kinds for kinds in candidates({Kind.COLUMNS, Kind.LEARNERS}) if len(kinds) > 1]
    assert beside == [(Kind.COLUMNS, Kind.LEARNERS)]
    assert (Kind.PATCHES, Kind.INITIAL) in every


@pytest.mark.parametrize(("accuracy", "chosen"), [(0.624, PATCHES), (0.626, BOTH)])
def test_ten_passes_have_to_gain_2_5_points(accuracy: float, chosen: tuple[Kind, ...]) -> None:
    tried = [Tried(PATCHES, 0.6, 1), Tried(BOTH, accuracy, 11)]
    assert choose(tried).features == chosen


def test_each_gain_is_counted_from_the_last_one_taken() -> None:
    # From 0.50 the learners would pay; from the patches' 0.60 they do not.
    tried = [Tried(OF_SOUP, 0.5, 1), Tried(LEARNERS, 0.6, 10), Tried(PATCHES, 0.6, 1)]
    assert choose(tried).features == PATCHES


def test_only_proxies_within_two_points_on_few_examples_are_tried_on_more() -> None:
    # Worth 59.75, 59.5, 57.5 and 57.8.
    close, far = Tried(PATCHES, 0.615, 8), Tried(LEARNERS, 0.6, 10)
    tried = [Tried(OF_SOUP, 0.6, 1), close, far, Tried(BOTH, 0.6055, 11)]
    assert hopeful(tried) == [OF_SOUP, PATCHES, BOTH]


@pytest.mark.parametrize(("accuracy", "wins"), [(0.979, True), (0.981, False)])
def test_a_proxy_too_costly_even_for_a_flawless_head_is_not_tried(
    accuracy: float, wins: bool
) -> None:
    # Eight further passes have to gain two points.
    assert can_win(10, [Tried(PATCHES, accuracy, 2), Tried(OF_SOUP, 0.5, 1)]) is wins
    assert can_win(10, [])
