"""Access: addresses, certificates, sockets, tokens and roles, for both ends of a call."""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    """A caller's permission; an admin has both others'."""

    WORKER = "worker"
    TRAINER = "trainer"
    ADMIN = "admin"


EVERY_ROLE = frozenset(Role)
