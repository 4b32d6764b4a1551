"""Presets: options of a strategy by one name, such as those that its paper reports with.

A preset is resolved before options are parsed: what is given besides wins over it. Where a
paper tunes an option by the size of the subset, its value is a function of that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from lipt.common.errors import UnknownNameError


@dataclass(frozen=True)
class Preset:
    """Named values of options.

    summary: what they are and whose, as a phrase.
    values: texts by name, as a user would give them; a function of the fraction of the data
        set that is kept where they depend on it. Options that are not named keep their
        defaults.
    balanced: equal shares per class or not; None for the strategy's default.
    """

    summary: str
    values: Mapping[str, str] | Callable[[float], Mapping[str, str]]
    balanced: bool | None = None

    def options(self, fraction: float, given: Mapping[str, str]) -> dict[str, str]:
        """The texts of all options that are given or preset, by name.

        Args:
            fraction: the share of the data set that is kept, in (0, 1].
            given: what the user says besides.
        """
        values = self.values(fraction) if callable(self.values) else self.values
        return {**values, **given}


NO_PRESET = Preset("every option's default", {})


def find_preset(strategy: str, presets: Mapping[str, Preset], name: str) -> Preset:
    """The preset of that name; the one of defaults where the name is empty.

    Raises:
        UnknownNameError: there is none; the message lists those that there are.
    """
    if not name:
        return NO_PRESET
    if name not in presets:
        listed = f"Choose one of: {', '.join(presets)}" if presets else "It has none"
        raise UnknownNameError(
            f"strategy {strategy!r} has no preset {name!r}. {listed}, or give options by name."
        )
    return presets[name]


def between(points: Mapping[float, float], fraction: float) -> float:
    """A value for any fraction from those at some: a straight line between neighbors.

    Beyond the first and the last point, theirs.
    """
    fractions = sorted(points)
    if fraction <= fractions[0]:
        return points[fractions[0]]
    for low, high in pairwise(fractions):
        if fraction <= high:
            share = (fraction - low) / (high - low)
            return points[low] + share * (points[high] - points[low])
    return points[fractions[-1]]
