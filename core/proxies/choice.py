"""Choice among proxies: a dearer one is taken where what it gains is worth its price.

What proxies gain is their exact leave-one-out accuracy on a sample, which needs no validation
split. What they cost is counted in passes: the time of one forward pass of the run's model
over the data. Pure arithmetic on what was measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lipt.core.proxies.proxy import Kind

# A point of accuracy, in percent, has to be worth four further passes: ten learners' forward
# passes cost about as much as three epochs of training, and have to gain 2.5 points.
POINTS_PER_PASS = 0.25
# Larger ones hardly change which proxy wins.
MAX_SAMPLE = 5_000
# Of a torchvision network on scaled images, against a small one for the data's own size.
_BACKBONE_PASSES = 10.0
_PATCHES_PASSES = 1.0
# What nothing is trained for.
_PLAIN = (Kind.PATCHES, Kind.COLUMNS)


@dataclass(frozen=True)
class Tried:
    """A proxy, tried on a sample.

    accuracy: leave-one-out, in [0, 1], the mean over classes.
    passes: what its features cost on all of the data.
    """

    features: tuple[Kind, ...]
    accuracy: float
    passes: float

    @property
    def facts(self) -> dict[str, object]:
        """For a manifest."""
        return {
            "features": "+".join(self.features),
            "accuracy": self.accuracy,
            "passes": self.passes,
        }


def candidates(available: Iterable[Kind]) -> list[tuple[Kind, ...]]:
    """What is tried of what is there: each kind alone, then costly ones beside plain values."""
    kinds = [kind for kind in Kind if kind in set(available)]
    alone: list[tuple[Kind, ...]] = [(kind,) for kind in kinds]
    # Data has pictures or columns, never both.
    for plain in _PLAIN:
        if plain in kinds:
            beside = [kind for kind in kinds if kind not in (*_PLAIN, Kind.SOUP)]
            alone += [tuple(sorted((kind, plain), key=kinds.index)) for kind in beside]
    return alone


def passes_of(features: Iterable[Kind], num_learners: int) -> float:
    """What features cost, in forward passes of the run's model over the data."""
    passes = {
        Kind.USER: 0.0,
        Kind.PATCHES: _PATCHES_PASSES,
        Kind.COLUMNS: 0.0,
        Kind.SOUP: 1.0,
        Kind.INITIAL: 1.0,
        Kind.LEARNERS: float(num_learners),
        Kind.BACKBONE: _BACKBONE_PASSES,
    }
    return sum(passes[kind] for kind in features)


def choose(tried: Sequence[Tried]) -> Tried:
    """The one that pays: from the cheapest on, each that gains more than it costs.

    Args:
        tried: at least one. Of equal prices the more accurate one wins, of equal accuracies
            the cheaper one, of equal in both the first.
    """
    in_order = sorted(tried, key=lambda one: (one.passes, -one.accuracy))
    best = in_order[0]
    for dearer in in_order[1:]:
        gained = 100 * (dearer.accuracy - best.accuracy)
        if gained > POINTS_PER_PASS * (dearer.passes - best.passes):
            best = dearer
    return best
