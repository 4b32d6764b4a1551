from __future__ import annotations

from lipt.coordinator.page.kept_maps import KeptMaps


def test_the_map_that_was_asked_for_longest_ago_goes() -> None:
    maps = KeptMaps()
    for number in range(16):
        maps.keep((str(number),), ((0.0, float(number)),))
    assert maps.get(("0",)) == ((0.0, 0.0),)
    maps.keep(("16",), ())
    assert maps.get(("1",)) is None
    assert maps.get(("0",)) is not None
