"""Session file: sessions in the state directory, so that a restart signs nobody out.

It holds digests of secrets and who has signed in with them, no secret: whoever reads it can sign in
nowhere. A file that cannot be read is one without sessions, and one that cannot be written leaves
them in memory: neither keeps a coordinator from serving.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from lipt.common.access.roles import Role
from lipt.common.blobs.durable import publish, temporary_file, write_all
from lipt.coordinator.access.caller import Caller

logger = logging.getLogger(__name__)

FILE = "page-sessions.json"


@dataclass(frozen=True)
class StoredSession:
    """A session as it is written; the fields are those of `Session` and `Caller`."""

    key: str
    ends_at: float
    caller_key: str
    name: str
    roles: frozenset[Role]
    certificate: str = ""
    expires_at: float | None = None

    @classmethod
    def of(cls, key: str, caller: Caller, ends_at: float) -> StoredSession:
        """As it is to be written."""
        return cls(
            key,
            ends_at,
            caller.key,
            caller.name,
            caller.roles,
            caller.certificate,
            caller.expires_at,
        )

    @property
    def caller(self) -> Caller:
        """Who signed in."""
        return Caller(self.caller_key, self.name, self.roles, self.certificate, self.expires_at)


_SESSIONS = TypeAdapter(list[StoredSession])


class SessionFile:
    """Where sessions outlive their coordinator."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / FILE

    def load(self) -> list[StoredSession]:
        """Those that were saved last, the oldest first."""
        try:
            return _SESSIONS.validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return []
        except (OSError, ValidationError):
            logger.warning("%s cannot be read: browsers have to sign in again", self._path)
            return []

    def save(self, sessions: Iterable[StoredSession]) -> None:
        """Replace what was saved."""
        try:
            # Like every temporary file of the state directory it is its user's alone.
            with temporary_file(self._path.parent) as (file, temporary):
                write_all(file, _SESSIONS.dump_json(list(sessions)))
                publish(file, temporary, self._path)
        except OSError as error:
            logger.warning("%s cannot be written: %s", self._path, error.strerror)
