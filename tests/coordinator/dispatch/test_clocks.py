from __future__ import annotations

from lipt.coordinator.dispatch.clocks import steady_clock


def test_setting_the_machine_s_clock_does_not_move_it() -> None:
    wall, monotonic = [1000.0], [5.0]
    now = steady_clock(lambda: wall[0], lambda: monotonic[0])
    assert now() == 1000.0
    wall[0] += 86_400
    monotonic[0] += 2
    assert now() == 1002.0
    wall[0] -= 10 * 86_400
    assert now() == 1002.0
