from __future__ import annotations

import pytest

from lipt.common.errors import ConfigError
from lipt.coordinator.access.tokens import OWN_USER
from lipt.coordinator.page.door import Door
from lipt.coordinator.page.sessions import Sessions
from tests.clock import Clock


def test_link_has_a_code_of_the_caller_and_ends_in_a_minute(clock: Clock) -> None:
    sessions = Sessions(lambda _: True, clock=clock)
    door = Door(sessions, wall_clock=clock)
    with pytest.raises(ConfigError, match=r"serves no page\. Start it with --dashboard-listen"):
        door.link(OWN_USER)
    door.open_at("https://lipt.example.org")
    link, ends_at = door.link(OWN_USER)
    before, _, code = link.partition("code=")
    assert before == "https://lipt.example.org/sign-in?"
    assert ends_at == clock.now + 60
    assert sessions.take_code(code) == OWN_USER
