"""Sessions: signed-in browsers, one-time links, and failed attempts to sign in.

A browser's cookie is its session, encrypted and signed with a key that follows from the
coordinator's own token. Sessions outlast a restart, and end with another own token. A file lists
the sessions that were signed out. Each request checks that the session's token or certificate is
still valid.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from base64 import urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from cryptography.fernet import Fernet, InvalidToken
from pydantic import TypeAdapter, ValidationError

from lipt.common.blobs.files import state_errors, write_durably
from lipt.common.errors import ConfigError, TooManyCallsError, UnauthenticatedError
from lipt.coordinator.access.caller import Caller
from lipt.coordinator.access.tokens import OWN_USER
from lipt.coordinator.rpc.limits import used

logger = logging.getLogger(__name__)

FILE = "page-signed-out.json"
SESSION_SECONDS = 12 * 3600.0
CODE_SECONDS = 60.0
# Per caller; beyond that the oldest is removed.
_MOST_CODES = 16
_SIGN_IN = "Sign in again: with a link of `lipt dashboard`, or with a token."

_ATTEMPTS_PER_SECOND = 0.5
_ATTEMPTS_BURST_SECONDS = 20.0  # ten attempts at once
_MAX_ADDRESSES = 10_000


@dataclass(frozen=True)
class Session:
    """A signed-in browser: its caller, and when it signed in, in seconds."""

    caller: Caller
    began_at: float
    # Names the coordinator's own token of that time.
    own: str = ""

    @property
    def peer(self) -> str:
        """The peer for turns, quotas and limits."""
        own = self.caller == OWN_USER
        return f"page of {OWN_USER.key}" if own else self.caller.key


_SESSION = TypeAdapter(Session)
# When callers signed out, in seconds, by their keys.
_SIGNED_OUT = TypeAdapter(dict[str, float])
# Key for every caller, if the file is damaged.
_EVERYBODY = "everybody"


class Sessions:
    """Signed-in browsers, and the links by which `lipt dashboard` lets a browser in."""

    def __init__(
        self,
        own_token: Callable[[], str],
        holds: Callable[[Caller], bool],
        state_dir: Path,
        *,
        clock: Callable[[], float],
    ) -> None:
        """`holds` tells whether a caller's token or certificate is still valid."""
        key = hashlib.sha256(f"page sessions {own_token()}".encode()).digest()
        self._fernet = Fernet(urlsafe_b64encode(key))
        self._own_token = own_token
        self._holds = holds
        self._clock = clock
        self._codes: dict[str, Session] = {}
        self._path = state_dir / FILE
        self._writing = Lock()
        self._signed_out_at = self._load()
        # Of new links, once the page is open.
        self.url: str | None = None

    def link(self, caller: Caller) -> tuple[str, float]:
        """A one-time link that signs a browser in as the caller, and when it ends."""
        if self.url is None:
            raise ConfigError(
                "this coordinator serves no page. Start it with --dashboard-listen "
                "127.0.0.1:50080; it needs the extra: pip install '.[dashboard]'"
            )
        now = self._clock()
        for code, pending in list(self._codes.items()):
            if now >= pending.began_at + CODE_SECONDS:
                del self._codes[code]
        own = [code for code, pending in self._codes.items() if pending.caller == caller]
        if len(own) >= _MOST_CODES:
            del self._codes[own[0]]
        code = secrets.token_urlsafe(32)
        self._codes[code] = Session(caller, now)
        return f"{self.url}/sign-in?code={code}", now + CODE_SECONDS

    def take_code(self, code: str) -> Caller:
        """The caller of a link's code; a code works once."""
        pending = self._codes.pop(code, None)
        if pending is None or self._clock() >= pending.began_at + CODE_SECONDS:
            raise UnauthenticatedError(
                "the code is none of this coordinator's, was used, or is older than "
                f"{CODE_SECONDS:g} s. Ask for another: lipt dashboard"
            )
        return pending.caller

    def begin(self, caller: Caller) -> str:
        """Sign a caller in; the cookie for its browser."""
        session = Session(caller, self._clock(), self._own())
        return self._fernet.encrypt(_SESSION.dump_json(session)).decode()

    def find(self, cookie: str | None) -> Session:
        """The session of a cookie; UnauthenticatedError if there is none, or it has ended."""
        if cookie is None:
            raise UnauthenticatedError(f"the browser has not signed in. {_SIGN_IN}")
        try:
            session = _SESSION.validate_json(self._fernet.decrypt(cookie.encode()))
        except (InvalidToken, ValueError):
            session = None
        if session is None or not self.holds(session):
            raise UnauthenticatedError(f"the session has ended. {_SIGN_IN}")
        return session

    def holds(self, session: Session) -> bool:
        """Whether a session is valid; it ends with its caller's token or certificate."""
        began_at, signed_out_at = session.began_at, self._signed_out_at
        keys = (session.caller.key, _EVERYBODY)
        if any(began_at <= signed_out_at[key] for key in keys if key in signed_out_at):
            return False
        if session.own != self._own():
            return False
        return self._clock() < began_at + SESSION_SECONDS and self._holds(session.caller)

    def _own(self) -> str:
        return hashlib.sha256(f"session of {self._own_token()}".encode()).hexdigest()[:16]

    async def end(self, session: Session) -> None:
        """End all sessions of the caller that have begun.

        After a StateError they have ended, but a restart would bring them back.
        """
        now = self._clock()
        recent = {key: at for key, at in self._signed_out_at.items() if now < at + SESSION_SECONDS}
        self._signed_out_at = {**recent, session.caller.key: now}
        await asyncio.to_thread(self._save)

    def _load(self) -> dict[str, float]:
        try:
            return _SIGNED_OUT.validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValidationError):
            logger.warning("%s cannot be read: all browsers have to sign in again", self._path)
            return {_EVERYBODY: self._clock()}

    def _save(self) -> None:
        # Read under the lock: the last write has the newest.
        with self._writing, state_errors(self._path):
            write_durably(self._path, _SIGNED_OUT.dump_json(self._signed_out_at))


class Attempts:
    """Limits failed attempts to sign in, by address."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until: OrderedDict[str, float] = OrderedDict()

    def note_failure(self, address: str) -> None:
        """Count a failed attempt; TooManyCallsError after too many recent ones."""
        until, waits = used(
            self._until.get(address, 0.0),
            self._clock(),
            per_second=_ATTEMPTS_PER_SECOND,
            burst_seconds=_ATTEMPTS_BURST_SECONDS,
        )
        if waits:
            raise TooManyCallsError(
                f"too many attempts to sign in have failed from {address}. Try again in "
                f"{waits:.0f} s.",
                retry_after_seconds=waits,
            )
        self._until[address] = until
        self._until.move_to_end(address)
        if len(self._until) > _MAX_ADDRESSES:
            self._until.popitem(last=False)
