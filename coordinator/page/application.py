"""Application: the page's files and its routes, behind one guard.

The guard checks the host name, the origin and the caller's role before anything of a request is
read. A route takes the roles of the contract's call that does the same, by the one access table; a
route that changes the whole service takes an admin besides.

Another page in the same browser can send requests here, and another name can be made to point here
(DNS rebinding). The browser states both truly: the host in `Host`, the sender in `Origin`.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount
from starlette.routing import Route as StarletteRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lipt.common.access.roles import Role
from lipt.common.errors import PermissionDeniedError
from lipt.common.network.tls import is_loopback
from lipt.coordinator.access.caller import note_caller, require_role
from lipt.coordinator.page import handlers, requests
from lipt.coordinator.page.handlers import OPEN_PAGE, Handler
from lipt.coordinator.page.requests import Body, Page, PageRequest
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
_DEFAULT_PORTS = {"http": 80, "https": 443}

_CREATE_RUN = "/lipt.v1.RunService/CreateRun"
_CANCEL_RUN = "/lipt.v1.RunService/CancelRun"
_GET_SUBSET = "/lipt.v1.SubsetService/GetSubset"
_DIAGNOSE = "/lipt.v1.DiagnosisService/Diagnose"
_STRATEGIES = "/lipt.v1.SubsetService/ListStrategies"
_GET_INFO = "/lipt.v1.InfoService/GetInfo"
_WATCH = "/lipt.v1.InfoService/WatchService"


@dataclass(frozen=True)
class Route:
    """A route of the page.

    Attributes:
        calls: the call of the contract whose roles it takes; empty where signing in is not needed.
        body: the model of its content; None for a GET.
        admins_only: whether the page lets admins alone do it, whatever the call's roles.
        streams: whether its answer goes on for a while.
    """

    method: str
    path: str
    handler: Handler
    calls: str
    body: type[Body] | None = None
    admins_only: bool = False
    streams: bool = False


def _get(path: str, handler: Handler, calls: str, *, streams: bool = False) -> Route:
    return Route("GET", path, handler, calls, streams=streams)


def _post(path: str, handler: Handler, calls: str, body: type[Body], **how: bool) -> Route:
    return Route("POST", path, handler, calls, body, **how)


_RUN, _SUBSETS = "/api/runs/{run}", "/api/runs/{run}/subsets"
ROUTES = (
    _get("/sign-in", handlers.sign_in_by_code, ""),
    _post("/api/sign-in", handlers.sign_in_by_token, "", handlers.TokenShown),
    _post("/api/sign-out", handlers.sign_out, OPEN_PAGE, requests.Nothing),
    _get("/api/me", handlers.who_am_i, OPEN_PAGE),
    _get("/api/info", handlers.info, _GET_INFO),
    _get("/api/live", handlers.live, _WATCH, streams=True),
    _post("/api/runs", handlers.start_run, _CREATE_RUN, handlers.RunWanted, admins_only=True),
    _post(f"{_RUN}/cancel", handlers.cancel_run, _CANCEL_RUN, requests.Nothing, admins_only=True),
    _post("/api/pictures", handlers.pictures, _GET_SUBSET, handlers.PicturesWanted),
    _post("/api/diagnosis", handlers.diagnose, _DIAGNOSE, handlers.DiagnosisWanted, streams=True),
    _post(f"{_RUN}/map", handlers.draw_map, _GET_SUBSET, handlers.MapWanted, streams=True),
    _get("/api/strategies", handlers.strategies, _STRATEGIES),
    _get(_SUBSETS, handlers.list_subsets, _GET_SUBSET),
    _get(f"{_SUBSETS}/{{digest}}", handlers.show_subset, _GET_SUBSET),
    _get(f"{_SUBSETS}/{{digest}}/beside/{{other}}", handlers.compare_subsets, _GET_SUBSET),
    _post(_SUBSETS, handlers.choose_subset, _GET_SUBSET, handlers.SubsetWanted, streams=True),
)


def application(page: Page) -> ASGIApp:
    """The page as an ASGI application."""

    async def index(_: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    routes: list[StarletteRoute | Mount] = [
        StarletteRoute(route.path, _Guarded(page, route), methods=[route.method])
        for route in ROUTES
    ]
    # An editable install links to its files one by one.
    files = StaticFiles(directory=STATIC, follow_symlink=True)
    routes += [StarletteRoute("/", index), Mount("/static", files)]
    errors = {404: _not_found, 405: _not_found}
    return _Outermost(page, Starlette(routes=routes, exception_handlers=errors))


class _Outermost:
    """Puts the security headers on every answer, and refuses foreign host names."""

    def __init__(self, page: Page, inner: ASGIApp) -> None:
        self._page = page
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        kept = "no-cache" if scope["path"].startswith("/static/") else "no-store"

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update({**HEADERS, "Cache-Control": kept})
            await send(message)

        request = Request(scope)
        try:
            require_own_host(request.headers.get("host", ""), self._page.names)
        except PermissionDeniedError as error:
            await requests.refuse(self._page, error, request)(scope, receive, with_headers)
            return
        await self._inner(scope, receive, with_headers)


class _Guarded:
    """One route behind its checks."""

    def __init__(self, page: Page, route: Route) -> None:
        self._page = page
        self._route = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, begun = Request(scope, receive), False

        async def noting(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._answer(request, scope, receive, noting)
        except ClientDisconnect:
            return
        except Exception as error:  # noqa: BLE001 - the outermost frame of a request
            response = requests.refuse(self._page, error, request)
            # An answer that has begun is cut off: it cannot become another.
            if not begun:
                await response(scope, receive, send)

    async def _answer(self, request: Request, scope: Scope, receive: Receive, send: Send) -> None:
        session = self._admitted(request)
        peer = f"page: {requests.address_of(request)}" if session is None else session.peer
        limits, streams, model = self._page.limits, self._route.streams, self._route.body
        waits = limits.enter(peer, streams=streams)
        try:
            await asyncio.sleep(waits)
            body = None if model is None else await requests.read_body(request, model)
            response = await self._route.handler(PageRequest(self._page, request, session), body)
            await response(scope, receive, send)
        finally:
            limits.leave(peer, streams=streams)

    def _admitted(self, request: Request) -> Session | None:
        """The session, which may use this route; None where signing in is not needed."""
        route, page = self._route, self._page
        if route.method != "GET":
            require_own_origin(request.headers.get("origin"), request.headers.get("host", ""))
            requests.require_json(request.headers.get("content-type"))
        if not route.calls:
            return None
        session = page.sessions.find(request.cookies.get(page.cookie))
        require_role(session.caller, route.calls)
        if route.admins_only and Role.ADMIN not in session.caller.roles:
            raise PermissionDeniedError(
                f"{session.caller.name} is no admin, and on the page admins alone may do this. "
                "Do it with the lipt command, or sign in with an admin's token."
            )
        # In the task that answers the request: each has one of its own.
        note_caller(session.caller)
        return session


async def _not_found(request: Request, error: Exception) -> Response:
    text = f"there is no {request.method} {request.url.path[:200]} here."
    value = {"error": {"reason": "NOT_FOUND", "message": text}}
    return requests.answer(value, status=getattr(error, "status_code", 404))


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
    hostname = _hostname(host)
    # An address cannot be made to point elsewhere.
    if hostname in names or _is_address(hostname):
        return
    raise PermissionDeniedError(
        f"this page is not served as {hostname[:200]!r}. It is as {', '.join(sorted(names))}, or "
        "by its address; behind a proxy, give the coordinator --dashboard-url."
    )


def require_own_origin(origin: str | None, host: str) -> None:
    """Refuse a request whose header `Origin` is not the page at the header `Host`."""
    if origin is not None and (sender := _host_and_port(origin)) is not None:
        scheme = urlsplit(origin).scheme
        if sender == _host_and_port(f"{scheme}://{host}"):
            return
    raise PermissionDeniedError(
        f"the request comes from {(origin or 'nowhere')[:200]!r}, and not from the page at "
        f"{host[:200]!r}. Behind a proxy, have it pass the header Host on as it is."
    )


def _host_and_port(url: str) -> tuple[str, int] | None:
    try:
        parts = urlsplit(url)
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
    except ValueError:
        return None
    if not parts.hostname or port is None:
        return None
    return parts.hostname, port


def _hostname(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _is_address(hostname: str) -> bool:
    try:
        ipaddress.ip_address(hostname)
    except ValueError:
        return False
    return True
