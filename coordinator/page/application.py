"""Application: the page's files and its routes, behind one guard.

The guard checks, before anything of a request is read: the host name, the origin, the caller's
role and the size of the body. A route takes the roles of the contract's call that does the same,
by the one access table; a route that changes the whole service takes an admin besides.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount
from starlette.routing import Route as StarletteRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lipt.common.access.roles import Role
from lipt.common.errors import InvalidRequestError, PermissionDeniedError
from lipt.coordinator.access.caller import note_caller
from lipt.coordinator.access.table import require_role
from lipt.coordinator.page import handlers, http, subsets
from lipt.coordinator.page.http import Body, Handler, Page, PageRequest
from lipt.coordinator.page.security import (
    HEADERS,
    NOT_KEPT,
    REVALIDATED,
    require_own_host,
    require_own_origin,
)
from lipt.coordinator.page.sessions import Session

STATIC = Path(__file__).parent / "static"
# The time that a body may take to arrive, over any line.
_BODY_SECONDS = 20.0

_OPEN_PAGE = handlers.OPEN_PAGE
_CREATE_RUN = "/lipt.v1.RunService/CreateRun"
_CANCEL_RUN = "/lipt.v1.RunService/CancelRun"
_GET_SUBSET = "/lipt.v1.SubsetService/GetSubset"
_STRATEGIES = "/lipt.v1.SubsetService/ListStrategies"
_DIAGNOSE = "/lipt.v1.DiagnosisService/Diagnose"
_GET_INFO = "/lipt.v1.InfoService/GetInfo"
_WATCH = "/lipt.v1.InfoService/WatchService"


@dataclass(frozen=True)
class Route:
    """A route of the page.

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
    _post("/api/sign-out", handlers.sign_out, _OPEN_PAGE, http.Nothing),
    _get("/api/me", handlers.who_am_i, _OPEN_PAGE),
    _get("/api/info", handlers.info, _GET_INFO),
    _get("/api/live", handlers.live, _WATCH, streams=True),
    _post("/api/runs", handlers.start_run, _CREATE_RUN, handlers.RunWanted, admins_only=True),
    _post(f"{_RUN}/cancel", handlers.cancel_run, _CANCEL_RUN, http.Nothing, admins_only=True),
    _post(f"{_RUN}/map", handlers.draw_map, _GET_SUBSET, handlers.MapWanted, streams=True),
    _post("/api/pictures", handlers.pictures, _DIAGNOSE, handlers.PicturesWanted),
    _post("/api/diagnosis", handlers.diagnose, _DIAGNOSE, handlers.DiagnosisWanted, streams=True),
    _get("/api/strategies", subsets.strategies, _STRATEGIES),
    _get(_SUBSETS, subsets.list_subsets, _GET_SUBSET),
    _get(f"{_SUBSETS}/{{digest}}", subsets.show_subset, _GET_SUBSET),
    _post(_SUBSETS, subsets.choose_subset, _GET_SUBSET, subsets.SubsetWanted, streams=True),
    _post(f"{_RUN}/side-by-side", subsets.side_by_side, _GET_SUBSET, subsets.TwoSubsets),
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

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                caching = REVALIDATED if scope["path"].startswith("/static/") else NOT_KEPT
                MutableHeaders(scope=message).update(dict((*HEADERS, caching)))
            await send(message)

        request = Request(scope)
        try:
            require_own_host(request.headers.get("host", ""), self._page.names)
        except PermissionDeniedError as error:
            refused = http.refused(self._page, error, request)
            await http.error_answer(refused)(scope, receive, with_headers)
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
            refused = http.refused(self._page, error, request)
            # An answer that has begun is cut off: it cannot become another.
            if not begun:
                await http.error_answer(refused)(scope, receive, send)

    async def _answer(self, request: Request, scope: Scope, receive: Receive, send: Send) -> None:
        session = self._admitted(request)
        peer = f"page: {http.address_of(request)}" if session is None else session.peer
        limits, streams = self._page.limits, self._route.streams
        waits = limits.enter(peer, streams=streams)
        try:
            if waits:
                await asyncio.sleep(waits)
            body = await self._body(request)
            response = await self._route.handler(PageRequest(self._page, request, session), body)
            await response(scope, receive, send)
        finally:
            limits.leave(peer, streams=streams)

    def _admitted(self, request: Request) -> Session | None:
        """The session, which may use this route; None where signing in is not needed."""
        route, page = self._route, self._page
        if route.method != "GET":
            require_own_origin(request.headers.get("origin"), request.headers.get("host", ""))
            http.require_json(request.headers.get("content-type"))
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

    async def _body(self, request: Request) -> Body | None:
        if self._route.body is None:
            return None
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                content = await http.read_body(request.stream())
        except TimeoutError:
            raise InvalidRequestError(
                f"the body has not arrived within {_BODY_SECONDS:g} s. Send it again."
            ) from None
        return http.parse_body(content, self._route.body)


async def _not_found(request: Request, error: Exception) -> Response:
    text = f"there is no {request.method} {request.url.path[:200]} here."
    value = {"error": {"reason": "NOT_FOUND", "message": text}}
    return http.answer(value, status=getattr(error, "status_code", 404))
