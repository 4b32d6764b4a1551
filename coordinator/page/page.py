"""What the page's handlers delegate to, and what they are asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from lipt.coordinator.app import App
from lipt.coordinator.page.attempts import Attempts
from lipt.coordinator.page.bodies import Body
from lipt.coordinator.page.kept_maps import KeptMaps
from lipt.coordinator.page.open_streams import OpenStreams
from lipt.coordinator.page.sessions import Session, Sessions
from lipt.coordinator.rpc.info import InfoService
from lipt.coordinator.rpc.peer_limits import PeerLimits
from lipt.coordinator.rpc.watching import Watching


@dataclass(frozen=True, kw_only=True)
class Page:
    """The parts of a page that is served.

    info, watching: as gRPC's servicers have them.
    sessions: who has signed in.
    attempts: who has failed to.
    limits: how often each party calls, gRPC's calls included.
    names: the host names that it is served under.
    address: of the gRPC server, host:port, for code that calls it.
    cookie: the name of the cookie with the session's secret.
    encrypted: whether it is served over HTTPS.
    static: the folder of its files.
    """

    app: App
    info: InfoService
    watching: Watching
    sessions: Sessions
    attempts: Attempts
    limits: PeerLimits
    names: set[str]
    address: str
    cookie: str
    encrypted: bool
    static: Path
    live_streams: OpenStreams = field(default_factory=OpenStreams)
    maps: KeptMaps = field(default_factory=KeptMaps)


@dataclass(frozen=True)
class Asked:
    """One request that was let in.

    request: its path, parameters and headers; its body was read.
    session: None where nobody has to have signed in.
    body: what it says, checked; None where it has none.
    """

    page: Page
    request: Request
    session: Session | None
    body: Body | None

    @property
    def own(self) -> Session:
        """Who asks, where it has signed in."""
        if self.session is None:
            raise ValueError(f"{self.request.url.path} is asked without a session")
        return self.session

    def path(self, name: str) -> str:
        """A part of the path."""
        return str(self.request.path_params[name])


Handler = Callable[[Asked, Any], Awaitable[Response]]
