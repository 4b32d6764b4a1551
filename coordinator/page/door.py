"""Door: the one-time links by which `lipt dashboard` opens the page."""

from __future__ import annotations

from collections.abc import Callable

from lipt.common.errors import ConfigError
from lipt.coordinator.access.caller import Caller
from lipt.coordinator.page.sessions import CODE_SECONDS, Sessions


class Door:
    """Gives links to the page, once it is served."""

    def __init__(self, sessions: Sessions, *, wall_clock: Callable[[], float]) -> None:
        """Begin without a page.

        Args:
            sessions: take the links' codes.
            wall_clock: what people are told by when a link ends.
        """
        self._sessions = sessions
        self._wall_clock = wall_clock
        self._url: str | None = None

    def open_at(self, url: str) -> None:
        """The page is served there from now on."""
        self._url = url

    def link(self, caller: Caller) -> tuple[str, float]:
        """A link that signs a browser in as the caller, and when it ends on the wall clock.

        Raises:
            ConfigError: this coordinator serves no page.
        """
        if self._url is None:
            raise ConfigError(
                "this coordinator serves no page. Start it with --dashboard-listen "
                "127.0.0.1:50080; it needs the extra: pip install 'lipt[dashboard]'"
            )
        code = self._sessions.give_code(caller)
        return f"{self._url}/sign-in?code={code}", self._wall_clock() + CODE_SECONDS
