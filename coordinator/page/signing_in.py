"""Signing in and out: by a one-time link, or by a token; who has, and as whom."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from lipt.common.access.roles import Role
from lipt.common.errors import LiptError, UnauthenticatedError
from lipt.coordinator.access.caller import Caller
from lipt.coordinator.access.table import require_role
from lipt.coordinator.page.answers import answer
from lipt.coordinator.page.bodies import Body, Nothing
from lipt.coordinator.page.page import Asked, Page
from lipt.coordinator.page.sessions import SESSION_SECONDS
from lipt.coordinator.page.telling import tell_refusal

# Who may see the page at all: who may ask for a link to it.
OPEN_PAGE = "/lipt.v1.AccessService/OpenPage"


class TokenShown(Body):
    """A token, as it was pasted."""

    token: Annotated[str, Field(max_length=200)]


async def sign_in_by_code(asked: Asked, _: None) -> Response:
    """GET /sign-in?code=: from here on the browser is who has asked for the link."""
    page, request = asked.page, asked.request
    address = address_of(request)
    try:
        page.attempts.require_room(address)
        caller = page.sessions.take_code(request.query_params.get("code", ""))
        require_role(caller, OPEN_PAGE)
    except LiptError as error:
        if isinstance(error, UnauthenticatedError):
            page.attempts.note_failure(address)
        tell_refusal(page.app.events, error, request)
        return RedirectResponse("/?refused=1", 303)
    return _signed_in(page, request, caller, RedirectResponse("/", 303))


async def sign_in_by_token(asked: Asked, body: TokenShown) -> Response:
    """POST /api/sign-in."""
    page, request = asked.page, asked.request
    address = address_of(request)
    page.attempts.require_room(address)
    try:
        caller = page.app.tokens.caller(body.token)
    except UnauthenticatedError:
        page.attempts.note_failure(address)
        raise
    require_role(caller, OPEN_PAGE)
    return _signed_in(page, request, caller, answer(_shown(caller)))


async def sign_out(asked: Asked, _: Nothing) -> Response:
    """POST /api/sign-out: the cookie is worth nothing any more."""
    asked.page.sessions.end(asked.own)
    response = answer({})
    response.delete_cookie(asked.page.cookie, path="/", httponly=True, samesite="strict")
    return response


async def who_am_i(asked: Asked, _: None) -> Response:
    """GET /api/me."""
    return answer(_shown(asked.own.caller))


def address_of(request: Request) -> str:
    """Where a request comes from."""
    return request.client.host if request.client is not None else "somewhere"


def _signed_in(page: Page, request: Request, caller: Caller, response: Response) -> Response:
    # A proxy in front that has TLS says so; who else says it makes the cookie only stricter.
    encrypted = page.encrypted or request.headers.get("x-forwarded-proto") == "https"
    response.set_cookie(
        page.cookie,
        page.sessions.begin(caller),
        max_age=int(SESSION_SECONDS),
        path="/",
        httponly=True,
        samesite="strict",
        secure=encrypted,
    )
    return response


def _shown(caller: Caller) -> dict[str, object]:
    return {"name": caller.name, "roles": [role for role in Role if role in caller.roles]}
