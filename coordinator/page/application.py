"""Application: the page's files and its routes, behind one guard.

The guard checks host name, origin and role before a request is read: another page in the same
browser can send requests here, and another name can be made to point here (DNS rebinding).
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount
from starlette.routing import Route as StarletteRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lipt.common.access import Role
from lipt.common.access.tls import is_loopback
from lipt.common.errors import PermissionDeniedError
from lipt.coordinator.access.caller import Caller, note_caller, require_role
from lipt.coordinator.page import handlers, requests
from lipt.coordinator.page.handlers import OPEN_PAGE
from lipt.coordinator.page.requests import Handler, Page, PageRequest
from lipt.coordinator.page.sessions import Session

STATIC = Path(__file__).parent / "static"

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


@dataclass(frozen=True)
class Route:
    """A route, with the roles of the contract's `call`; open to everyone if that is empty."""

    method: str
    path: str
    handler: Handler
    call: str = OPEN_PAGE
    admins_only: bool = False
    streams: bool = False

    @classmethod
    def of_call(cls, call: str, *, admins_only: bool = False) -> Self:
        handler, streams = handlers.calling(call)
        return cls("POST", f"/api/{call}", handler, call, admins_only, streams)


_GET_SUBSET, _DIAGNOSE = "SubsetService/GetSubset", "DiagnosisService/Diagnose"
_GET_MIXTURE = "MixtureService/GetMixture"
_SUBSETS = "/api/runs/{run}/subsets"
_ONE_SUBSET = f"{_SUBSETS}/{{digest}}"
ROUTES = (
    Route("GET", "/sign-in", handlers.sign_in_by_code, ""),
    Route("POST", "/api/sign-in", handlers.sign_in_by_token, ""),
    Route("POST", "/api/sign-out", handlers.sign_out),
    Route.of_call("AccessService/WhoAmI"),
    Route.of_call("InfoService/GetInfo"),
    Route.of_call("InfoService/WatchService"),
    Route.of_call("RunService/CancelRun", admins_only=True),
    Route.of_call("SubsetService/ListStrategies"),
    Route.of_call(_GET_SUBSET),
    Route.of_call(_DIAGNOSE),
    Route("POST", "/api/runs", handlers.start_run, "RunService/CreateRun", admins_only=True),
    Route("POST", "/api/pictures", handlers.pictures, _GET_SUBSET),
    Route("POST", "/api/runs/{run}/map", handlers.draw_map, _GET_SUBSET, streams=True),
    Route("GET", "/api/diagnoses/{sha256}", handlers.show_diagnosis, _DIAGNOSE),
    Route("GET", _SUBSETS, handlers.list_subsets, _GET_SUBSET),
    Route("GET", _ONE_SUBSET, handlers.show_subsets, _GET_SUBSET),
    Route("GET", f"{_ONE_SUBSET}/beside/{{other}}", handlers.show_subsets, _GET_SUBSET),
    Route("GET", "/api/runs/{run}/mixtures", handlers.list_mixtures, _GET_MIXTURE),
)


def application(page: Page) -> ASGIApp:
    async def index(_: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    routes: list[StarletteRoute | Mount] = [
        StarletteRoute(route.path, _Guarded(page, route), methods=[route.method])
        for route in ROUTES
    ]
    # An editable install links to its files one by one.
    files = StaticFiles(directory=STATIC, follow_symlink=True)
    routes += [StarletteRoute("/", index), Mount("/static", files)]
    inner = Starlette(routes=routes)

    async def outermost(scope: Scope, receive: Receive, send: Send) -> None:
        """Put the security headers on every answer, and refuse foreign host names."""
        if scope["type"] != "http":
            return
        kept = "no-cache" if scope["path"].startswith("/static/") else "no-store"

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update({**HEADERS, "Cache-Control": kept})
            await send(message)

        request = Request(scope)
        try:
            require_own_host(request.headers.get("host", ""), page.names)
        except PermissionDeniedError as error:
            await requests.refuse(page, error, request)(scope, receive, with_headers)
            return
        await inner(scope, receive, with_headers)

    return outermost


class _Guarded:
    def __init__(self, page: Page, route: Route) -> None:
        self._page = page
        self._route = route
        self._handler = requests.by_fields(route.handler)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, begun = Request(scope, receive), False

        async def noting(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            session = self._admitted(request)
            async with self._page.limits.counted(session.peer, streams=self._route.streams):
                body = await requests.read_body(request) if request.method == "POST" else b"{}"
                admitted = PageRequest(self._page, request, session)
                value = await self._handler(admitted, body)
                response = await requests.response_of(value, admitted)
                await response(scope, receive, noting)
        except ClientDisconnect:
            return
        except Exception as error:  # noqa: BLE001 - the outermost frame of a request
            response = requests.refuse(self._page, error, request)
            # An answer that has begun is cut off: it cannot become another.
            if not begun:
                await response(scope, receive, send)

    def _admitted(self, request: Request) -> Session:
        """The session, which may use this route; anonymous where signing in is not needed."""
        route, page = self._route, self._page
        if route.method != "GET":
            require_own_origin(request.headers.get("origin"), request.headers.get("host", ""))
            requests.require_json(request.headers.get("content-type"))
        if not route.call:
            address = requests.address_of(request)
            return Session(Caller(f"page: {address}", address, frozenset()), began_at=0.0)
        session = page.sessions.find(request.cookies.get(page.cookie))
        require_role(session.caller, f"/lipt.v1.{route.call}")
        if route.admins_only and Role.ADMIN not in session.caller.roles:
            raise PermissionDeniedError(
                f"{session.caller.name} is no admin, and on the page admins alone may do this. "
                "Do it with the lipt command, or sign in with an admin's token."
            )
        # In the task that answers the request: each has one of its own.
        note_caller(session.caller)
        return session


def own_names(listen_host: str, certified: Iterable[str] = (), url: str | None = None) -> set[str]:
    """The host names of the page: its own, its certificate's and that of `url`."""
    names = {"localhost", listen_host, *certified}
    if not is_loopback(listen_host):
        names |= {socket.gethostname(), socket.getfqdn()}
    if url is not None:
        names.add(urlsplit(url).hostname or "")
    return {name.lower() for name in names if name}


def require_own_host(host: str, names: set[str]) -> None:
    """Refuse a header `Host` that is neither an address nor one of these names."""
    hostname = ""
    with suppress(ValueError):
        hostname = (urlsplit(f"//{host}").hostname or "").lower()
    if hostname in names:
        return
    # An address cannot be made to point elsewhere.
    with suppress(ValueError):
        ipaddress.ip_address(hostname)
        return
    raise PermissionDeniedError(
        f"this page is not served as {hostname[:200]!r}. It is as {', '.join(sorted(names))}, or "
        "by its address; behind a proxy, give the coordinator --dashboard-url."
    )


def require_own_origin(origin: str | None, host: str) -> None:
    """Refuse a request whose header `Origin` is not the page at the header `Host`."""
    scheme, _, sender = (origin or "").partition("://")
    # Browsers leave a scheme's own port out of both headers.
    if scheme in {"http", "https"} and sender and sender.lower() == host.lower():
        return
    raise PermissionDeniedError(
        f"the request comes from {(origin or 'nowhere')[:200]!r}, and not from the page at "
        f"{host[:200]!r}. Behind a proxy, have it pass the header Host on as it is."
    )
