"""Roles of callers."""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    """What the coordinator lets a caller do; an admin may do what both others may."""

    WORKER = "worker"
    TRAINER = "trainer"
    ADMIN = "admin"


EVERY_ROLE = frozenset(Role)
