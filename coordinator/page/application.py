"""Application: the page's files and its interface, behind one guard.

The guard comes before whatever a request says is read: the name that it was sent to, where it
comes from, who sends it and what that role may do, and how much of it there is.
"""

from __future__ import annotations

import asyncio

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lipt.common.access.roles import Role
from lipt.common.errors import InvalidRequestError, LiptError, PermissionDeniedError
from lipt.coordinator.access.caller import note_caller
from lipt.coordinator.access.table import require_role
from lipt.coordinator.page.answers import answer, error_answer
from lipt.coordinator.page.bodies import parse_body, read_body, require_json
from lipt.coordinator.page.page import Asked, Page
from lipt.coordinator.page.routes import ROUTES, Row
from lipt.coordinator.page.security import (
    ASKED_ANEW,
    HEADERS,
    NOT_KEPT,
    require_own_host,
    require_own_origin,
)
from lipt.coordinator.page.sessions import Session
from lipt.coordinator.page.signing_in import address_of
from lipt.coordinator.page.telling import incident, tell_refusal

# So much is there at once, over any line.
_BODY_SECONDS = 20.0


def application(page: Page) -> ASGIApp:
    """The page as an ASGI application."""

    async def index(_: Request) -> Response:
        return FileResponse(page.static / "index.html")

    routes: list[Route | Mount] = [
        Route(row.path, _Guarded(page, row), methods=[row.method]) for row in ROUTES
    ]
    if page.static.is_dir():
        routes.append(Route("/", index))
        # An editable install links to its files one by one.
        files = StaticFiles(directory=page.static, follow_symlink=True)
        routes.append(Mount("/static", files))
    handlers = {404: _nothing_there, 405: _nothing_there}
    return _Outermost(page, Starlette(routes=routes, exception_handlers=handlers))


class _Outermost:
    """Says to the browser what it says in every answer, and refuses other names than its own."""

    def __init__(self, page: Page, inner: ASGIApp) -> None:
        self._page = page
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                kept = ASKED_ANEW if scope["path"].startswith("/static/") else NOT_KEPT
                for name, value in (*HEADERS, kept):
                    headers[name] = value
            await send(message)

        request = Request(scope)
        try:
            require_own_host(request.headers.get("host", ""), self._page.names)
        except PermissionDeniedError as error:
            tell_refusal(self._page.app.events, error, request)
            await error_answer(error)(scope, receive, with_headers)
            return
        await self._inner(scope, receive, with_headers)


class _Guarded:
    """One route behind its row of the table."""

    def __init__(self, page: Page, row: Row) -> None:
        self._page = page
        self._row = row

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
        except LiptError as error:
            tell_refusal(self._page.app.events, error, request)
            refused = error
        except Exception as error:  # noqa: BLE001 - the outermost frame of a request
            refused = incident(error, f"{request.method} {request.url.path[:200]}")
        else:
            return
        # What has begun is cut off, for it cannot become another answer.
        if not begun:
            await error_answer(refused)(scope, receive, send)

    async def _answer(self, request: Request, scope: Scope, receive: Receive, send: Send) -> None:
        session = self._admitted(request)
        peer = session.peer if session is not None else f"page: {address_of(request)}"
        limits, streams = self._page.limits, self._row.streams
        waits = limits.enter(peer, streams=streams)
        try:
            if waits:
                await asyncio.sleep(waits)
            response = await self._response(request, session)
            await response(scope, receive, send)
        finally:
            limits.leave(peer, streams=streams)

    def _admitted(self, request: Request) -> Session | None:
        """Who asks, if anybody has to have signed in; it may."""
        row, page = self._row, self._page
        if row.method != "GET":
            require_own_origin(request.headers.get("origin"), request.headers.get("host", ""))
            require_json(request.headers.get("content-type"))
        if not row.calls:
            return None
        session = page.sessions.find(request.cookies.get(page.cookie))
        require_role(session.caller, row.calls)
        if row.admins_only and Role.ADMIN not in session.caller.roles:
            raise PermissionDeniedError(
                f"{session.caller.name} is no admin, and on the page admins alone may do this. "
                "Do it with the lipt command, or sign in with an admin's token."
            )
        # In the task that answers the request: each has one of its own.
        note_caller(session.caller)
        return session

    async def _response(self, request: Request, session: Session | None) -> Response:
        model, body = self._row.body, None
        if model is not None:
            declared = request.headers.get("content-length")
            try:
                async with asyncio.timeout(_BODY_SECONDS):
                    content = await read_body(request.stream(), declared)
            except TimeoutError:
                raise InvalidRequestError(
                    f"the body has not arrived within {_BODY_SECONDS:g} s. Send it again."
                ) from None
            body = parse_body(content, model)
        return await self._row.handler(Asked(self._page, request, session, body), body)


async def _nothing_there(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    text = f"there is no {request.method} {request.url.path[:200]} here."
    value = {"error": {"reason": "NOT_FOUND", "message": text}}
    return answer(value, status=status)
