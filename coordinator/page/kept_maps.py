"""Kept maps: the last few that were drawn, for each takes seconds and looks the same again."""

from __future__ import annotations

from collections import OrderedDict

Places = tuple[tuple[float, float], ...]
_MOST = 16


class KeptMaps:
    """Places of examples by what they are of: a run and its subsets."""

    def __init__(self) -> None:
        self._maps: OrderedDict[tuple[str, ...], Places] = OrderedDict()

    def get(self, key: tuple[str, ...]) -> Places | None:
        """What was kept, if it is still there."""
        if key in self._maps:
            self._maps.move_to_end(key)
        return self._maps.get(key)

    def keep(self, key: tuple[str, ...], places: Places) -> None:
        """Keep a map; the one that was asked for longest ago goes."""
        self._maps[key] = places
        self._maps.move_to_end(key)
        while len(self._maps) > _MOST:
            self._maps.popitem(last=False)
