"""The proxy of best value: exact leave-one-out accuracy on a sample against the price in passes.

A pass is a forward pass of the run's model over the data. `lipt.common.requests` has the proxies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lipt.common.requests import FeatureKind

# A percentage point of accuracy has to be worth two more passes.
POINTS_PER_PASS = 0.5
# A head's time grows with the cube of the sample, as features are often more than its examples.
MAX_SAMPLE = 2_000
# A torchvision network on scaled images, relative to a small one for the data's own size.
_BACKBONE_PASSES = 10.0
# With mirror images.
_PATCHES_PASSES = 1.0
# Features without training.
_PLAIN = (FeatureKind.PATCHES, FeatureKind.COLUMNS)


@dataclass(frozen=True)
class ProxyScore:
    """A proxy's leave-one-out accuracy on a sample, in [0, 1], and its price in passes."""

    features: tuple[FeatureKind, ...]
    accuracy: float
    passes: float

    @property
    def worth(self) -> float:
        """Percentage points of accuracy, less the price."""
        return 100 * self.accuracy - POINTS_PER_PASS * self.passes

    @property
    def facts(self) -> dict[str, Any]:
        return {**asdict(self), "features": list(self.features)}


def with_features_as_text(facts: Mapping[str, Any]) -> dict[str, Any]:
    """A head's facts for a manifest: its features, and those tried, as users write them."""
    written = dict(facts)
    if "features" in facts:
        written["features"] = "+".join(facts["features"])
    if "tried" in facts:
        written["tried"] = [with_features_as_text(head) for head in facts["tried"]]
    return written


def candidates(available: Iterable[FeatureKind]) -> list[tuple[FeatureKind, ...]]:
    """The proxies to try: untrained features and the user's alone, others beside untrained ones.

    Never learners: the soup of long ones knows as much, for one pass.
    """
    kinds = [kind for kind in FeatureKind if kind in set(available) - {FeatureKind.LEARNERS}]
    # Data has pictures or columns, never both.
    plain = [kind for kind in kinds if kind in _PLAIN]
    if not plain:
        return [(kind,) for kind in kinds]
    alone = [(kind,) for kind in kinds if kind in (*plain, FeatureKind.USER)]
    beside = [tuple(sorted((kind, *plain), key=kinds.index)) for kind in kinds if kind not in plain]
    return [*alone, *beside]


def passes_of(features: Iterable[FeatureKind], num_learners: int) -> float:
    """The price of features in passes."""
    passes = {
        FeatureKind.USER: 0.0,
        FeatureKind.PATCHES: _PATCHES_PASSES,
        FeatureKind.COLUMNS: 0.0,
        FeatureKind.SOUP: 1.0,
        FeatureKind.INITIAL: 1.0,
        FeatureKind.LEARNERS: float(num_learners),
        FeatureKind.BACKBONE: _BACKBONE_PASSES,
    }
    return sum(passes[kind] for kind in features)


def can_win(passes: float, tried: Iterable[ProxyScore]) -> bool:
    """Whether a proxy of this price would be chosen with half the errors of each one tried."""
    return all(
        score.worth < ProxyScore((), (1 + score.accuracy) / 2, passes).worth for score in tried
    )


# Share of the errors of untrained features that theta_p's beside them remove at best. Of patches: 0
# on 500 to 2,000 images of cifar10-jpeg, 8% on 50,000. Of columns: 22% on a table of 20,000 rows,
# 68% on 10,000 texts.
_REMOVED_OF_PATCHES, _REMOVED = 0.12, 0.5


def removed_at_best(untrained: Iterable[FeatureKind]) -> float:
    """Share of a head's errors that theta_p's features remove at best, beside untrained ones."""
    return _REMOVED_OF_PATCHES if FeatureKind.PATCHES in untrained else _REMOVED


def training_can_pay(accuracy: float, untrained: Iterable[FeatureKind], passes: float) -> bool:
    """Whether learners' features can be worth their training and a pass, beside untrained ones.

    accuracy: of a head on the untrained features. passes: price of the training.
    """
    points = 100 * removed_at_best(untrained) * (1 - accuracy)
    return points > POINTS_PER_PASS * (1 + passes)


def choose(tried: Iterable[ProxyScore]) -> ProxyScore:
    """The proxy of most worth; of equal ones the cheapest."""
    return max(sorted(tried, key=lambda score: score.passes), key=lambda score: score.worth)
