"""Caller: who is behind a call, for as long as it is served."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

from lipt.common.access.roles import EVERY_ROLE, Role


@dataclass(frozen=True)
class Caller:
    """Who calls.

    key: one text per party, by which turns, quotas and bindings are counted: a certificate's
        digest, a token's id, or a network address.
    name: how people are told of it.
    roles: what it may do.
    certificate: the SHA-256 of the certificate that it showed, in hexadecimal; empty for none.
    expires_at: when that certificate ends, in seconds since 1970; None where it showed none.
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
    """Who is behind the call that is being served."""
    return _current.get()


def note_caller(caller: Caller) -> None:
    """From here on, in this task, `caller` is behind the call."""
    _current.set(caller)
