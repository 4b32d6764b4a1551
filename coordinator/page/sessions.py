"""Sessions: browsers that have signed in, and one-time codes that let them.

A browser shows a secret that nobody guesses; what is kept is its SHA-256, and who signed in: in
memory, and in a file for the time after a restart.
A session is worth no more than what it was begun with: a token that is revoked, or a certificate
that has ended, ends it.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from lipt.common.errors import UnauthenticatedError
from lipt.coordinator.access.caller import Caller
from lipt.coordinator.access.tokens import OWN_USER
from lipt.coordinator.page.session_file import SessionFile, StoredSession

SESSION_SECONDS = 12 * 3600.0
CODE_SECONDS = 60.0
# Of one caller, and of all: the oldest goes.
_MOST_OF_CALLER, _MOST = 16, 1000

_SIGN_IN = "Sign in again: with a link of `lipt dashboard`, or with a token."


def draw_secret() -> str:
    """32 random bytes, as a cookie and an address can carry them."""
    return secrets.token_urlsafe(32)


@dataclass(frozen=True)
class Session:
    """A browser that has signed in.

    key: the digest of its secret.
    caller: who signed in.
    ends_at: on the clock of its sessions.
    """

    key: str
    caller: Caller
    ends_at: float

    @property
    def peer(self) -> str:
        """By what its turns are taken, and its quotas and limits counted."""
        own = self.caller == OWN_USER
        return f"page of {OWN_USER.key}" if own else self.caller.key


class Kept:
    """Callers by secrets that hold for some time; belongs to the event loop."""

    def __init__(
        self,
        seconds: float,
        *,
        clock: Callable[[], float],
        draw: Callable[[], str] = draw_secret,
    ) -> None:
        """Begin with none.

        Args:
            seconds: how long each of them holds.
            clock: seconds.
            draw: makes a secret.
        """
        self._seconds = seconds
        self._clock = clock
        self._draw = draw
        self._kept: OrderedDict[str, Session] = OrderedDict()

    def everything(self) -> list[Session]:
        """All that holds, the oldest first."""
        return [kept for kept in self._kept.values() if self.holds(kept)]

    def restore(self, kept: Session) -> None:
        """Keep what was kept before a restart."""
        self._kept[kept.key] = kept

    def begin(self, caller: Caller) -> tuple[str, Session]:
        """A new secret, and what is kept under it."""
        self._make_room(caller)
        secret = self._draw()
        kept = Session(_digest(secret), caller, self._clock() + self._seconds)
        self._kept[kept.key] = kept
        return secret, kept

    def find(self, secret: str) -> Session | None:
        """What is kept under a secret, if it still holds."""
        kept = self._kept.get(_digest(secret))
        return kept if kept is not None and self.holds(kept) else None

    def holds(self, kept: Session) -> bool:
        """Whether it has neither ended nor been taken away."""
        return kept.key in self._kept and self._clock() < kept.ends_at

    def end(self, kept: Session) -> None:
        """Nobody gets in with it from here on."""
        self._kept.pop(kept.key, None)

    def _make_room(self, caller: Caller) -> None:
        for kept in [one for one in self._kept.values() if not self.holds(one)]:
            self.end(kept)
        own = [one for one in self._kept.values() if one.caller == caller]
        for kept in own[: max(len(own) - _MOST_OF_CALLER + 1, 0)]:
            self.end(kept)
        while len(self._kept) >= _MOST:
            self._kept.popitem(last=False)


class Sessions:
    """Who may see the page."""

    def __init__(
        self,
        holds: Callable[[Caller], bool],
        *,
        clock: Callable[[], float],
        draw: Callable[[], str] = draw_secret,
        file: SessionFile | None = None,
    ) -> None:
        """Begin with those who had signed in before a restart.

        Args:
            holds: whether what a caller once showed is still worth something.
            clock: seconds; of the wall, where there is a file.
            draw: makes a secret.
            file: where sessions outlive this process; they end with it where there is none.
        """
        self._holds = holds
        self._file = file
        self._sessions = Kept(SESSION_SECONDS, clock=clock, draw=draw)
        self._codes = Kept(CODE_SECONDS, clock=clock, draw=draw)
        for stored in file.load() if file is not None else ():
            self._sessions.restore(Session(stored.key, stored.caller, stored.ends_at))

    def give_code(self, caller: Caller) -> str:
        """A code with which a browser signs in as the caller, once and soon."""
        return self._codes.begin(caller)[0]

    def take_code(self, code: str) -> Caller:
        """Whose code this is, for the last time.

        Raises:
            UnauthenticatedError: it was used, has expired, or never was one.
        """
        found = self._codes.find(code)
        if found is None:
            raise UnauthenticatedError(
                "the code is none of this coordinator's, was used, or is older than "
                f"{CODE_SECONDS:g} s. Ask for another: lipt dashboard"
            )
        self._codes.end(found)
        return found.caller

    def begin(self, caller: Caller) -> str:
        """Sign a caller in; the secret is what its browser shows from here on."""
        secret = self._sessions.begin(caller)[0]
        self._save()
        return secret

    def find(self, secret: str | None) -> Session:
        """The session of a secret.

        Raises:
            UnauthenticatedError: there is none, or it has ended.
        """
        if secret is None:
            raise UnauthenticatedError(f"the browser has not signed in. {_SIGN_IN}")
        session = self._sessions.find(secret)
        if session is None or not self.holds(session):
            raise UnauthenticatedError(f"the session has ended. {_SIGN_IN}")
        return session

    def holds(self, session: Session) -> bool:
        """Whether a session goes on; one of a caller that is let in no more is ended."""
        if self._sessions.holds(session) and self._holds(session.caller):
            return True
        self.end(session)
        return False

    def end(self, session: Session) -> None:
        """Sign out."""
        self._sessions.end(session)
        self._save()

    def _save(self) -> None:
        if self._file is not None:
            kept = self._sessions.everything()
            self._file.save(StoredSession.of(one.key, one.caller, one.ends_at) for one in kept)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()
