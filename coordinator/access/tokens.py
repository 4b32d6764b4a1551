"""Tokens that a coordinator takes: those that it gave out, and its own.

A token counts once it is on disk; a revoked one ends at once, whatever the disk says. The
coordinator's own token makes an admin of whoever can read its file, which is its own user.
"""

from __future__ import annotations

import hmac
import logging
import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from lipt.common.access.roles import Role
from lipt.common.access.tokens import Token
from lipt.common.blobs.durable import publish, temporary_file, write_all
from lipt.common.errors import InvalidRequestError, UnauthenticatedError, UnknownTokenError
from lipt.coordinator.access.caller import Caller
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import TokenRecord

logger = logging.getLogger(__name__)

OWN_FILE = "admin.token"
_OWN_ID = "admin"
_DAY_SECONDS = 86_400.0
_MAX_DAYS = 36_500.0
# What the key of a caller with a token begins with.
_TOKEN_KEY = "token"  # noqa: S105 - the name of a way

HOW_TO_GET_ONE = (
    "Ask whoever runs the coordinator for one (lipt token create --role worker or trainer), and "
    "give it with --token-file or LIPT_TOKEN."
)

OWN_USER = Caller(key="own user", name="the coordinator's own user", roles=frozenset({Role.ADMIN}))


class Tokens:
    """The tokens of a state, and their holders."""

    def __init__(self, database: Database, own: Token, *, wall_clock: Callable[[], float]) -> None:
        self._database = database
        self._own = own
        self._clock = wall_clock
        self._records: dict[str, TokenRecord] = {}

    async def load(self) -> None:
        """Read all that were given out."""
        self._records = {record.token_id: record for record in await self._database.load_tokens()}

    @property
    def own(self) -> str:
        """The text of the coordinator's own token."""
        return self._own.text

    def listed(self) -> tuple[TokenRecord, ...]:
        """All that were given out, oldest first."""
        return tuple(self._records.values())

    async def create(
        self, role: Role, *, name: str, days: float, created_by: str
    ) -> tuple[TokenRecord, str]:
        """Give out a token for some days (0: until it is revoked); its text is stored nowhere."""
        if not 0.0 <= days <= _MAX_DAYS:  # also refuses NaN
            raise InvalidRequestError(
                f"a token cannot hold for {days:g} days. Give 0 < days <= {_MAX_DAYS:g}, or none "
                "for one that holds until it is revoked."
            )
        token = Token.draw(self._free_id())
        now = self._clock()
        record = TokenRecord(
            token_id=token.token_id,
            name=name or token.token_id,
            role=role,
            sha256=token.sha256,
            created_at=now,
            created_by=created_by,
            expires_at=now + days * _DAY_SECONDS if days else None,
        )
        await self._database.save_token(record)
        self._records[record.token_id] = record
        return record, token.text

    async def revoke(self, token_id: str) -> TokenRecord:
        """End a token; after a StateError it has ended, but a restart would bring it back."""
        record = self._records.get(token_id)
        if record is None:
            raise UnknownTokenError(
                f"there is no token {token_id!r}. lipt token list shows the ids of all."
            )
        if record.revoked_at is None:
            record = record.changed(revoked_at=self._clock())
            self._records[token_id] = record
        await self._database.save_token(record)
        return record

    def is_own(self, text: str) -> bool:
        """Whether this is the coordinator's own token."""
        return hmac.compare_digest(text.encode(), self._own.text.encode())

    def caller(self, text: str) -> Caller:
        """The holder of a token; UnauthenticatedError if it is none of these, or expired."""
        token = Token.parse(text)
        if token is not None and self.is_own(token.text):
            return OWN_USER
        record = self._records.get(token.token_id) if token is not None else None
        if token is None or record is None or not hmac.compare_digest(token.sha256, record.sha256):
            raise UnauthenticatedError(
                f"the token that the call shows is none of this coordinator's. {HOW_TO_GET_ONE}"
            )
        self._require_valid(record)
        return Caller(
            key=f"{_TOKEN_KEY}:{record.token_id}",
            name=_name(record),
            roles=frozenset({record.role}),
        )

    def holds(self, caller: Caller) -> bool:
        """Whether the token or certificate of a caller is still valid."""
        if caller.expires_at is not None and self._clock() >= caller.expires_at:
            return False
        kind, _, token_id = caller.key.partition(":")
        if kind != _TOKEN_KEY:
            return True
        record = self._records.get(token_id)
        if record is None or record.revoked_at is not None:
            return False
        return record.expires_at is None or self._clock() < record.expires_at

    def _require_valid(self, record: TokenRecord) -> None:
        if record.revoked_at is not None:
            raise UnauthenticatedError(
                f"{_name(record)} was revoked on {_day(record.revoked_at)}. {HOW_TO_GET_ONE}"
            )
        if record.expires_at is not None and self._clock() >= record.expires_at:
            raise UnauthenticatedError(
                f"{_name(record)} has expired on {_day(record.expires_at)}. {HOW_TO_GET_ONE}"
            )

    def _free_id(self) -> str:
        while (token_id := secrets.token_hex(4)) in self._records:
            pass
        return token_id


def _name(record: TokenRecord) -> str:
    named = f" ({record.name})" if record.name != record.token_id else ""
    return f"the token {record.token_id}{named}"


def _day(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


def keep_own_token(state_dir: Path) -> Token:
    """The own token of a state directory; it is made where there is none."""
    path = state_dir / OWN_FILE
    try:
        found = Token.parse(path.read_text(encoding="ascii", errors="replace"))
        if found is not None and found.token_id == _OWN_ID:
            return found
    except FileNotFoundError:
        pass
    token = Token.draw(_OWN_ID)
    try:
        with temporary_file(path.parent) as (file, temporary):
            write_all(file, f"{token.text}\n".encode())
            publish(file, temporary, path)
    except OSError as error:
        # A full disk is no reason not to serve: the token holds until the next start.
        logger.warning("%s cannot be written: %s", path, error.strerror)
    return token
