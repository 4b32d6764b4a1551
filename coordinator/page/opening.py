"""Opening: the page put together and served, with what tells `lipt dashboard` where it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from lipt.common.network.address import split_address
from lipt.common.network.certificates import PemFile, dns_names
from lipt.common.network.tls import TlsFiles
from lipt.coordinator.app import App
from lipt.coordinator.page.door import Door
from lipt.coordinator.page.security import own_names
from lipt.coordinator.page.serving import STATIC, PageServer
from lipt.coordinator.page.session_file import SessionFile
from lipt.coordinator.page.sessions import Sessions
from lipt.coordinator.rpc.info import InfoService
from lipt.coordinator.rpc.peer_limits import PeerLimits
from lipt.coordinator.rpc.watching import Watching


@dataclass(frozen=True)
class Entrance:
    """Where browsers get in: who has, and the links by which more do."""

    sessions: Sessions
    door: Door

    @classmethod
    def of(cls, app: App, *, wall_clock: Callable[[], float]) -> Entrance:
        """Of a coordinator, whether or not it serves a page."""
        file = SessionFile(app.settings.state_dir)
        sessions = Sessions(app.tokens.holds, clock=wall_clock, file=file)
        return cls(sessions, Door(sessions, wall_clock=wall_clock))


async def open_page(
    app: App,
    entrance: Entrance,
    server: PageServer,
    tls: TlsFiles | None,
    *,
    info: InfoService,
    watching: Watching,
    limits: PeerLimits,
    address: str,
) -> None:
    """Serve the page from here on.

    Args:
        app: what is watched.
        entrance: who gets in.
        server: listens.
        tls: the certificate that it shows.
        info: as gRPC has it, like the next two.
        watching: see there.
        limits: see there.
        address: of the gRPC server, for code that calls it.

    Raises:
        MissingExtraError: starlette or uvicorn is not installed.
    """
    # Imports starlette, which is an extra.
    from lipt.coordinator.page.application import application  # noqa: PLC0415
    from lipt.coordinator.page.attempts import Attempts  # noqa: PLC0415
    from lipt.coordinator.page.page import Page  # noqa: PLC0415

    settings = app.settings
    host, port = split_address(server.address)
    page = Page(
        app=app,
        info=info,
        watching=watching,
        sessions=entrance.sessions,
        attempts=Attempts(clock=monotonic),
        limits=limits,
        names=own_names(host, _certified(tls), settings.dashboard_url),
        address=address,
        # Browsers do not tell ports apart: two coordinators of one machine have a cookie each.
        cookie=f"lipt-{port}",
        encrypted=server.encrypted,
        static=STATIC,
    )
    await server.start(application(page), drain_seconds=settings.drain_seconds)
    entrance.door.open_at(settings.dashboard_url or server.url)


def _certified(tls: TlsFiles | None) -> tuple[str, ...]:
    if tls is None or tls.cert is None:
        return ()
    return dns_names(PemFile.read("--tls-cert", tls.cert))
