"""Sessions: signed-in browsers, one-time links, and failed attempts to sign in.

A browser shows a random secret; the coordinator keeps its SHA-256 and the caller, in memory and in
a file, so that a restart signs nobody out. A revoked token or an ended certificate ends a session.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from pydantic import TypeAdapter, ValidationError

from lipt.common.blobs.durable import publish, temporary_file, write_all
from lipt.common.errors import ConfigError, TooManyCallsError, UnauthenticatedError
from lipt.coordinator.access.caller import Caller
from lipt.coordinator.access.tokens import OWN_USER
from lipt.coordinator.rpc.limits import used

logger = logging.getLogger(__name__)

FILE = "page-sessions.json"
SESSION_SECONDS = 12 * 3600.0
CODE_SECONDS = 60.0
# Of one caller, and of all: the oldest goes.
_MOST_OF_CALLER, _MOST = 16, 1000
_SIGN_IN = "Sign in again: with a link of `lipt dashboard`, or with a token."

_ATTEMPTS_PER_SECOND = 0.5
_ATTEMPTS_BURST_SECONDS = 20.0  # ten attempts at once
_MAX_ADDRESSES = 10_000


def draw_secret() -> str:
    """32 random bytes, as a cookie and an address can carry them."""
    return secrets.token_urlsafe(32)


@dataclass(frozen=True)
class Session:
    """A signed-in browser: the digest of its secret, its caller, and when it ends in seconds."""

    key: str
    caller: Caller
    ends_at: float

    @property
    def peer(self) -> str:
        """The peer for turns, quotas and limits."""
        own = self.caller == OWN_USER
        return f"page of {OWN_USER.key}" if own else self.caller.key


_STORED = TypeAdapter(list[Session])


class Sessions:
    """Signed-in browsers, and the links by which `lipt dashboard` lets a browser in."""

    def __init__(
        self,
        holds: Callable[[Caller], bool],
        *,
        clock: Callable[[], float],
        draw: Callable[[], str] = draw_secret,
        state_dir: Path | None = None,
    ) -> None:
        """Begin with the sessions of before a restart, if they are kept in a `state_dir`.

        `holds` says whether a caller's token or certificate is still valid.
        """
        self._holds = holds
        self._clock = clock
        self._draw = draw
        self._path = None if state_dir is None else state_dir / FILE
        self._writing = Lock()
        self._sessions: dict[str, Session] = {session.key: session for session in self._load()}
        self._codes: dict[str, Session] = {}
        self._url: str | None = None

    def open_at(self, url: str) -> None:
        """Give links to this address from now on."""
        self._url = url

    def link(self, caller: Caller) -> tuple[str, float]:
        """A one-time link that signs a browser in as the caller, and when it ends."""
        if self._url is None:
            raise ConfigError(
                "this coordinator serves no page. Start it with --dashboard-listen "
                "127.0.0.1:50080; it needs the extra: pip install 'lipt[dashboard]'"
            )
        code = self._begin(self._codes, caller, CODE_SECONDS)
        return f"{self._url}/sign-in?code={code}", self._clock() + CODE_SECONDS

    def take_code(self, code: str) -> Caller:
        """The caller of a link's code, which is used up."""
        found = self._codes.pop(_digest(code), None)
        if found is None or self._clock() >= found.ends_at:
            raise UnauthenticatedError(
                "the code is none of this coordinator's, was used, or is older than "
                f"{CODE_SECONDS:g} s. Ask for another: lipt dashboard"
            )
        return found.caller

    async def begin(self, caller: Caller) -> str:
        """Sign a caller in; the secret for its browser."""
        secret = self._begin(self._sessions, caller, SESSION_SECONDS)
        await self._save()
        return secret

    def find(self, secret: str | None) -> Session:
        """The session of a secret; UnauthenticatedError if there is none, or it has ended."""
        if secret is None:
            raise UnauthenticatedError(f"the browser has not signed in. {_SIGN_IN}")
        session = self._sessions.get(_digest(secret))
        if session is None or not self.holds(session):
            raise UnauthenticatedError(f"the session has ended. {_SIGN_IN}")
        return session

    def holds(self, session: Session) -> bool:
        """Whether a session goes on; it ends with its caller's token or certificate."""
        lasts = session.key in self._sessions and self._clock() < session.ends_at
        if lasts and self._holds(session.caller):
            return True
        self._sessions.pop(session.key, None)
        return False

    async def end(self, session: Session) -> None:
        """Sign out; a restart does not bring the session back."""
        self._sessions.pop(session.key, None)
        await self._save()

    def _begin(self, table: dict[str, Session], caller: Caller, seconds: float) -> str:
        """A new secret of a caller in a table, where the oldest of too many go."""
        now = self._clock()
        ended = [key for key, session in table.items() if now >= session.ends_at]
        own = [key for key, session in table.items() if session.caller == caller]
        for key in (*ended, *own[: max(len(own) - _MOST_OF_CALLER + 1, 0)]):
            table.pop(key, None)
        for key in list(table)[: max(len(table) - _MOST + 1, 0)]:
            del table[key]
        secret = self._draw()
        key = _digest(secret)
        table[key] = Session(key, caller, now + seconds)
        return secret

    def _load(self) -> list[Session]:
        if self._path is None:
            return []
        try:
            return _STORED.validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return []
        except (OSError, ValidationError):
            logger.warning("%s cannot be read: browsers have to sign in again", self._path)
            return []

    async def _save(self) -> None:
        if self._path is not None:
            # Syncing to disk takes milliseconds to seconds: never on the event loop.
            await asyncio.to_thread(self._write, self._path)

    def _write(self, path: Path) -> None:
        # Sessions are listed under the lock: the last write has the newest list.
        with self._writing:
            try:
                with temporary_file(path.parent) as (file, temporary):
                    write_all(file, _STORED.dump_json(list(self._sessions.values())))
                    publish(file, temporary, path)
            except OSError as error:
                logger.warning("%s cannot be written: %s", path, error.strerror)


class Attempts:
    """Failed attempts to sign in, by address: they must not keep the coordinator busy."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until: OrderedDict[str, float] = OrderedDict()

    def require_room(self, address: str) -> None:
        """Refuse an address with too many failures lately, with the time to come again."""
        waits = self._used(address)[1]
        if waits:
            raise TooManyCallsError(
                f"too many attempts to sign in have failed from {address}. Try again in "
                f"{waits:.0f} s.",
                retry_after_seconds=waits,
            )

    def note_failure(self, address: str) -> None:
        """Count a failed attempt."""
        self._until[address] = self._used(address)[0]
        self._until.move_to_end(address)
        while len(self._until) > _MAX_ADDRESSES:
            self._until.popitem(last=False)

    def _used(self, address: str) -> tuple[float, float]:
        return used(
            self._until.get(address, 0.0),
            self._clock(),
            per_second=_ATTEMPTS_PER_SECOND,
            burst_seconds=_ATTEMPTS_BURST_SECONDS,
        )


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()
