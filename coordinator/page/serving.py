"""Serving: the page over HTTP or HTTPS, by uvicorn in the coordinator's event loop."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping
from functools import partial
from time import monotonic
from typing import Any

from lipt.common.access.tls import TlsFiles, server_context, split_address
from lipt.common.errors import ConfigError
from lipt.common.imports import import_extra
from lipt.coordinator.app import App
from lipt.coordinator.page.connections import SILENT_SECONDS, Connections, guarded
from lipt.coordinator.page.sessions import Attempts, Sessions
from lipt.coordinator.rpc.limits import PeerLimits

logger = logging.getLogger(__name__)

FLAG = "--dashboard-listen"
_MAX_HEADER_BYTES = 16 * 1024


def require_dashboard() -> None:
    """Refuse a page whose packages are missing, before anything is opened."""
    for package in ("starlette", "uvicorn"):
        import_extra(package, package=package, extra="dashboard", needed_for=FLAG)


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
        self._serving: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """The address for browsers of this machine, or of machines that reach it."""
        everywhere = self.host in {"0.0.0.0", "::"}  # noqa: S104 - compared, not bound
        host = socket.gethostname() if everywhere else self.host
        shown = f"[{host}]" if ":" in host else host
        return f"{'https' if self.encrypted else 'http'}://{shown}:{self.port}"

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
            h11_max_incomplete_event_size=_MAX_HEADER_BYTES,
            timeout_graceful_shutdown=max(round(drain_seconds), 1),
        )
        # The coordinator logs start and stop; requests of strangers must not fill the log.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        config.load()
        # In steps, and not by `serve`, which would take the coordinator's signals, and leave a
        # minute for a handshake.
        self._server = server = uvicorn.Server(config)
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
        self._serving = asyncio.create_task(self._server.main_loop(), name="page")

    async def stop(self) -> None:
        """Take no more requests, and let those under way end."""
        if self._server is None or self._serving is None:
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
    """Serve the page from here on."""
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
    sessions.open_at(settings.dashboard_url or server.url)
