import pytest

from lipt.common.requests import FeatureKind, Proxy
from lipt.core.proxies.proxy import ProxyScore, can_win, candidates, choose

PATCHES, OF_SOUP, LEARNERS = (FeatureKind.PATCHES,), (FeatureKind.SOUP,), (FeatureKind.LEARNERS,)
BOTH = (FeatureKind.PATCHES, FeatureKind.LEARNERS)


def test_auto_tries_trained_features_beside_untrained_ones_only() -> None:
    user, patches, columns = FeatureKind.USER, FeatureKind.PATCHES, FeatureKind.COLUMNS
    soup, backbone = FeatureKind.SOUP, FeatureKind.BACKBONE
    assert candidates([backbone, soup, patches]) == [PATCHES, (patches, soup), (patches, backbone)]
    # The user's are tried alone, too.
    pairs = [(user, columns), (columns, soup)]
    assert candidates([soup, columns, user]) == [(user,), (columns,), *pairs]
    # Beside nothing else, each alone.
    assert candidates([backbone, soup, user]) == [(user,), (soup,), (backbone,)]


def test_auto_takes_learners_by_name_only() -> None:
    every = set(FeatureKind) - {FeatureKind.COLUMNS}
    assert FeatureKind.LEARNERS not in {kind for kinds in candidates(every) for kind in kinds}
    assert not Proxy.parse("auto").may_use(FeatureKind.LEARNERS)
    assert Proxy.parse("auto").may_use(FeatureKind.SOUP)
    assert Proxy.parse("ridge:learners").may_use(FeatureKind.LEARNERS)


@pytest.mark.parametrize(("accuracy", "chosen"), [(0.609, PATCHES), (0.611, BOTH)])
def test_two_passes_must_gain_a_point(accuracy: float, chosen: tuple[FeatureKind, ...]) -> None:
    tried = [ProxyScore(PATCHES, 0.6, 2), ProxyScore(BOTH, accuracy, 4)]
    assert choose(tried).features == chosen


def test_gains_are_compared_with_the_best_proxy_so_far() -> None:
    # From 0.50 the learners would pay; from the patches' 0.60 they do not.
    soup, patches = ProxyScore(OF_SOUP, 0.5, 1), ProxyScore(PATCHES, 0.6, 1)
    assert choose([soup, ProxyScore(LEARNERS, 0.6, 10), patches]).features == PATCHES


@pytest.mark.parametrize(("accuracy", "wins"), [(0.919, True), (0.921, False)])
def test_a_proxy_too_costly_even_for_half_of_the_errors_is_not_tried(
    accuracy: float, wins: bool
) -> None:
    # Eight further passes have to gain four points.
    assert can_win(10, [ProxyScore(PATCHES, accuracy, 2), ProxyScore(OF_SOUP, 0.5, 1)]) is wins
    assert can_win(10, [])
