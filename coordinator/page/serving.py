"""Serving: the page over HTTP or HTTPS, by uvicorn in the coordinator's event loop.

Connections are limited, per address and in all. One is silent while no request of it is under way.
Beyond a limit the oldest silent one is closed, so that new ones are served.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
from collections.abc import Callable, Mapping
from functools import partial
from time import monotonic
from typing import Any

from lipt.common.access.peers import network_of
from lipt.common.access.tls import TlsFiles, served_url, server_context, split_address
from lipt.common.errors import ConfigError
from lipt.common.imports import import_extra
from lipt.coordinator.app import App
from lipt.coordinator.page.sessions import Attempts, Sessions
from lipt.coordinator.rpc.limits import PeerLimits

logger = logging.getLogger(__name__)

FLAG = "--dashboard-listen"
SILENT_SECONDS = 10.0
# A reverse proxy is one address.
MOST_OF_ADDRESS, MOST = 128, 256
_WARN_EVERY_SECONDS = 60.0


def require_dashboard() -> None:
    """Refuse a page whose packages are missing, before anything is opened."""
    for package in ("starlette", "uvicorn"):
        import_extra(package, package=package, extra="dashboard", needed_for=FLAG)


class Connections:
    """The open connections of one server, oldest first."""

    def __init__(self) -> None:
        self._open: dict[Any, None] = {}
        self._warned_at = -math.inf

    def add(self, new: Any) -> None:
        """Count a connection; beyond a limit another one, or this one, is closed."""
        self._open[new] = None
        own = [connection for connection in self._open if connection.address == new.address]
        crowded = own if len(own) > MOST_OF_ADDRESS else list(self._open)
        if len(own) <= MOST_OF_ADDRESS and len(self._open) <= MOST:
            return
        leaving = next(
            (
                connection
                for connection in crowded
                if connection is not new and connection.is_silent()
            ),
            new,
        )
        self.remove(leaving)
        leaving.transport.abort()
        if monotonic() - self._warned_at >= _WARN_EVERY_SECONDS:
            self._warned_at = monotonic()
            logger.warning(
                "the page has %d connections, %d of them of %s: silent ones are closed",
                *(len(self._open), len(own), new.address),
            )

    def remove(self, connection: Any) -> None:
        self._open.pop(connection, None)


def guarded(protocol: type[Any], connections: Connections) -> Callable[..., asyncio.Protocol]:
    """Uvicorn's protocol class, each of whose connections is counted and watched."""

    class Guarded(protocol):  # type: ignore[misc]
        address = ""
        _looked_at: object = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.address = network_of(self.client[0]) if self.client else ""
            self._timer = self.loop.call_later(SILENT_SECONDS, self._look)
            connections.add(self)

        def connection_lost(self, exc: Exception | None) -> None:
            self._timer.cancel()
            connections.remove(self)
            super().connection_lost(exc)

        def is_silent(self) -> bool:
            return self.cycle is None or self.cycle.response_complete

        def _look(self) -> None:
            # A connection whose last request is the same as before has sent none, or a part.
            if self.is_silent() and self.cycle is self._looked_at:
                self.transport.abort()
                return
            self._looked_at = self.cycle
            self._timer = self.loop.call_later(SILENT_SECONDS, self._look)

    return Guarded


class PageServer:
    """A listening socket, and its server once that is started."""

    def __init__(self, listen: str, tls: TlsFiles | None) -> None:
        """Listen at host:port; with `tls` for HTTPS. Browsers are asked for no certificate."""
        self.host, port = split_address(listen)
        self._context = server_context(tls, asks_peers=False)
        try:
            family = socket.getaddrinfo(self.host, port, type=socket.SOCK_STREAM)[0][0]
            self._socket = socket.create_server((self.host, port), family=family)
        except OSError as error:
            raise ConfigError(
                f"{FLAG} {listen}: {error.strerror or error}. Choose another address."
            ) from None
        self.port: int = self._socket.getsockname()[1]
        self.encrypted = self._context is not None
        self._server: Any = None
        self._serving: asyncio.Task[None]

    @property
    def url(self) -> str:
        """The address for browsers."""
        return served_url(self.host, self.port, encrypted=self.encrypted)

    async def start(self, application: Callable[..., Any], *, drain_seconds: float) -> None:
        """Answer from here on; once it stops, requests under way may take `drain_seconds`."""
        uvicorn = import_extra("uvicorn", package="uvicorn", extra="dashboard", needed_for=FLAG)
        config = uvicorn.Config(
            application,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=16 * 1024,
            timeout_graceful_shutdown=max(round(drain_seconds), 1),
        )
        # The coordinator logs start and stop; requests of strangers must not fill the log.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        config.load()
        # In steps, and not by `serve`, which would take the coordinator's signals, and leave a
        # minute for a handshake.
        server = uvicorn.Server(config)
        server.lifespan = config.lifespan_class(config)
        make = partial(
            guarded(config.http_protocol_class, Connections()),
            config=config,
            server_state=server.server_state,
            app_state={},
        )
        handshake = None if self._context is None else SILENT_SECONDS
        server.servers = [
            await asyncio.get_running_loop().create_server(
                make, sock=self._socket, ssl=self._context, ssl_handshake_timeout=handshake
            )
        ]
        self._server = server
        self._serving = asyncio.create_task(server.main_loop(), name="page")

    async def stop(self) -> None:
        """Take no more requests, and let those under way end."""
        if self._server is None:
            self._socket.close()
            return
        self._server.should_exit = True
        try:
            await self._serving
            await self._server.shutdown(sockets=[self._socket])
        except Exception:  # the coordinator has more to end than its page
            logger.warning("the page has ended with an error", exc_info=True)


async def open_page(
    app: App,
    services: Mapping[str, object],
    sessions: Sessions,
    server: PageServer,
    tls: TlsFiles | None,
    *,
    limits: PeerLimits,
) -> None:
    # Import starlette, which is an extra.
    from lipt.coordinator.page.application import application, own_names  # noqa: PLC0415
    from lipt.coordinator.page.requests import Page  # noqa: PLC0415

    settings = app.settings
    certified = () if tls is None else tls.dns_names()
    page = Page(
        app=app,
        services=services,
        sessions=sessions,
        attempts=Attempts(clock=monotonic),
        limits=limits,
        names=own_names(server.host, certified, settings.dashboard_url),
        # Browsers ignore ports in cookies, so each coordinator of a machine has its own name.
        cookie=f"lipt-{server.port}",
        encrypted=server.encrypted,
    )
    await server.start(application(page), drain_seconds=settings.drain_seconds)
    sessions.url = settings.dashboard_url or server.url
