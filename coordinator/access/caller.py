"""Caller: the party behind a call while it is served."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

from lipt.common.access.roles import EVERY_ROLE, Role


@dataclass(frozen=True)
class Caller:
    """The party behind a call.

    Attributes:
        key: of the party, for turns, quotas and bindings: a certificate's digest, a token's id,
            or a network address.
        name: for people.
        certificate: the SHA-256 of its certificate, in hexadecimal; empty for none.
        expires_at: of that certificate, in seconds since 1970; None for none.
    """

    key: str
    name: str
    roles: frozenset[Role]
    certificate: str = ""
    expires_at: float | None = None

    @property
    def only_works(self) -> bool:
        """Whether it is a worker and nothing more."""
        return self.roles == {Role.WORKER}


# Who is behind a call that nobody was asked to show anything for.
ANYBODY = Caller(key="anybody", name="anybody", roles=EVERY_ROLE)

_current: ContextVar[Caller] = ContextVar("lipt_caller", default=ANYBODY)


def current_caller() -> Caller:
    """The caller of the present call."""
    return _current.get()


def note_caller(caller: Caller) -> None:
    """Make `caller` the one of this task's call."""
    _current.set(caller)
